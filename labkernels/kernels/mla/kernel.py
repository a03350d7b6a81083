"""The interface of an MLA kernel, and what the CUDA kernels share."""

from typing import Protocol

from labkernels.budget.ledger import Ledger, Line
from labkernels.budget.quantity import number
from labkernels.kernels import cuda_kernel
from labkernels.kernels.kernel import CudaKernel, Instance, Kernel

# Registers that every CUDA MLA kernel needs to find its keys.
ADDRESSES = Line(
    "addresses", number(2) * 2 + 4, "2 pointers of 64 bits, the step's key, stage, page, row"
)


class MlaKernel(Kernel, Protocol):
    """A kernel of a few query tokens per request over latent rows."""

    operation: str = "mla"
    head_dims: tuple[int, ...] = (576,)


class CudaMlaKernel(MlaKernel, CudaKernel, Protocol):
    """An MLA kernel in CUDA C++."""

    params: str = "lab::MlaParams"
    launch: str = "..cuda"

    def template(self, instance: Instance) -> str:
        """`kernel::mla<KernelTraits<T, Dqk, Dvo, q_rows, keys, warps, stages, blocks>, Policy>`."""
        dims = (instance.head_dim, instance.head_dim_v)
        return cuda_kernel.cpp_function(instance, "mla", *dims, *instance.tile.numbers)


def register_ledger(instance: Instance, *lines: Line) -> Ledger:
    """The register ledger of a thread, with the lines that all MLA kernels have."""
    return cuda_kernel.register_ledger(instance, *lines, ADDRESSES)
