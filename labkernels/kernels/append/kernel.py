"""The interface of an append kernel."""

from typing import Protocol

from labkernels.kernels.cuda_kernel import CudaKernel, with_scales
from labkernels.kernels.kernel import Instance, Shape
from labkernels.kernels.tile import Tile


class AppendKernel(CudaKernel, Protocol):
    """A kernel that writes new keys and values after the last keys of each request."""

    operation: str = "append"
    params: str = "append::Params"
    launch: str = "..cuda"
    kv_dtypes: tuple[str | None, ...] = (None, "e4m3", "e5m2")

    def params_of(self, instance: Instance) -> str:
        """Return the C++ name of an instance's parameter."""
        params = "append::WithRotary" if instance.rotary else self.params
        return with_scales(params, instance)

    def rows_of(self, shape: Shape, tile: Tile) -> int:
        """Return 1, since rows are moved independently of each other."""
        return 1
