"""The tile of kernels that pack the queries of several heads into rows."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class PrefillTile:
    """The shape of a block's work: query rows, keys per step, warps, stages, blocks per SM.

    A row is one head of one token. key_order: the direction in which a block walks over its keys.
    overlap: what a warpgroup of a wgmma kernel does during its products: nothing ("none"), its own
    softmax ("within"), or its softmax in turn with the other warpgroups ("between").
    prefill_wgmma_basic has one more word for each rung of the ladder.
    """

    q_rows: int
    keys: int
    warps: int
    stages: int
    blocks_per_sm: int
    key_order: str = "ascending"
    overlap: str = ""
    legend: ClassVar[str] = "query rows x keys x warps x stages x blocks per SM"

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers that begin the label and that the C++ Tile holds."""
        return (self.q_rows, self.keys, self.warps, self.stages, self.blocks_per_sm)

    @property
    def label(self) -> str:
        """As in data/ and on the command line: "128x64x8x2x1", "-backward", "-within" behind it."""
        order = "-backward" if self.key_order == "descending" else ""
        overlap = f"-{self.overlap}" if self.overlap else ""
        return "x".join(map(str, self.numbers)) + order + overlap

    @property
    def threads(self) -> int:
        """Threads per block."""
        return 32 * self.warps
