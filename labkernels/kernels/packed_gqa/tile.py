"""The tile of kernels that pack the queries of several heads into rows."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class PrefillTile:
    """The shape of a block's work: query rows, keys per step, warps, stages, blocks per SM.

    A row is one head of one token. key_order: the direction in which a block walks over its keys.
    overlap: what runs during the products of a warpgroup of a wgmma kernel: nothing ("none"), its
    own softmax ("within"), or also the softmax of another warpgroup ("between"). For
    prefill_wgmma_basic, overlap is the name of a rung of the ladder; for other kernels, empty.
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
        """The name in data/ and on the command line, such as "128x64x8x2x1-backward-within"."""
        order = "-backward" if self.key_order == "descending" else ""
        overlap = f"-{self.overlap}" if self.overlap else ""
        return "x".join(map(str, self.numbers)) + order + overlap

    @property
    def threads(self) -> int:
        """Threads per block."""
        return 32 * self.warps
