"""The tile of kernels in which each warp has its own stages and keys."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class WarpTile:
    """The shape of a block's work: warps, keys per warp and step, stages, blocks per SM.

    `blocks_per_sm` is the promise of __launch_bounds__: ptxas limits the registers to keep it.
    """

    warps: int
    keys: int
    stages: int
    blocks_per_sm: int
    legend: ClassVar[str] = "warps x keys x stages x blocks per SM"

    @property
    def label(self) -> str:
        """As in data/ and on the command line: "4x16x2x3"."""
        return f"{self.warps}x{self.keys}x{self.stages}x{self.blocks_per_sm}"

    @property
    def threads(self) -> int:
        """Threads per block."""
        return 32 * self.warps
