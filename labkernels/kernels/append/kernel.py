"""The interface of an append kernel, and its tile."""

from typing import Protocol

from labkernels.kernels.cuda_kernel import CudaKernel
from labkernels.kernels.kernel import Shape, Tile
from labkernels.kernels.warp_tile import WarpTile


class AppendTile(WarpTile):
    """The tile of an append kernel; a warp has `keys` keys at most."""


class AppendKernel(CudaKernel, Protocol):
    """A kernel that writes new keys and values after the last keys of each request."""

    operation: str = "append"
    params: str = "append::Params"
    launch: str = "..cuda"

    def rows_of(self, shape: Shape, tile: Tile) -> int:
        """Return 1, since rows are moved independently of each other."""
        return 1
