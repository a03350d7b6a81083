"""The tile of kernels that pack the queries of several heads into rows."""

from dataclasses import dataclass

from labkernels.kernels.tile import RowTile


@dataclass(frozen=True)
class PrefillTile(RowTile):
    """A tile of rows, each of which is one head of one token.

    key_order: the direction in which a block walks over its keys.
    overlap: what runs during the products of a warpgroup of a wgmma kernel: nothing ("none"), its
    own softmax ("within"), or also the softmax of another warpgroup ("between"). For
    prefill_wgmma_basic, overlap is the name of a rung of the ladder; for other kernels, empty.
    """

    key_order: str = "ascending"
    overlap: str = ""

    @property
    def label(self) -> str:
        """The name in data/ and on the command line, such as "128x64x8x2x1-backward-within"."""
        order = "-backward" if self.key_order == "descending" else ""
        overlap = f"-{self.overlap}" if self.overlap else ""
        return super().label + order + overlap
