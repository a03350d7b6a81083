"""The shape of a block's work: the base of every tile, and the two kinds of tiles."""

from dataclasses import dataclass
from typing import ClassVar


class Tile:
    """The shape of a block's work; its label is its name in data/ and on the command line.

    `blocks_per_sm` is the promise of __launch_bounds__: ptxas limits the registers to keep it.
    """

    warps: int
    blocks_per_sm: int
    legend: ClassVar[str]

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers that begin the label and that the C++ tile holds."""
        return tuple(x for x in vars(self).values() if isinstance(x, int))

    @property
    def label(self) -> str:
        """The name, such as "4x16x2x3"."""
        return "x".join(map(str, self.numbers))

    @property
    def threads(self) -> int:
        """Threads per block."""
        return 32 * self.warps


@dataclass(frozen=True)
class WarpTile(Tile):
    """A tile of a kernel in which each warp has its own stages, and `keys` keys per step."""

    warps: int
    keys: int
    stages: int
    blocks_per_sm: int
    legend: ClassVar[str] = "warps x keys x stages x blocks per SM"


@dataclass(frozen=True)
class RowTile(Tile):
    """A tile of a kernel whose warps share query rows and the keys of a step."""

    q_rows: int
    keys: int
    warps: int
    stages: int
    blocks_per_sm: int
    legend: ClassVar[str] = "query rows x keys x warps x stages x blocks per SM"
