"""The interface of an MLA kernel, and what the CUDA kernels share."""

from typing import Protocol

from labkernels.budget.ledger import Ledger, Line
from labkernels.budget.quantity import number
from labkernels.cuda.compiler.specialization import Specialization
from labkernels.kernels import cuda_kernel
from labkernels.kernels.kernel import CudaKernel, Instance, Kernel

PARAMS = "lab::MlaParams"
MERGE_HEADER, MERGE_THREADS = "mla/merge.cuh", 128
# Registers that every CUDA MLA kernel needs to find its keys.
ADDRESSES = Line(
    "addresses", number(2) * 2 + 4, "2 pointers of 64 bits, the step's key, stage, page, row"
)


class MlaKernel(Kernel, Protocol):
    """A kernel of a few query tokens per request over latent rows."""

    operation: str = "mla"
    head_dims: tuple[int, ...] = (576,)


class CudaMlaKernel(MlaKernel, CudaKernel, Protocol):
    """An MLA kernel in CUDA C++; a kernel after it merges the splits, if it does not itself.

    division: how the merge divides O by l, a lab::Division.
    """

    params: str = PARAMS
    launch: str = "..cuda"
    division: str = "exact"

    def template(self, instance: Instance) -> str:
        """`kernel::mla<KernelTraits<T, Dqk, Dvo, q_rows, keys, warps, stages, blocks>, Policy>`."""
        dims = (instance.head_dim, instance.head_dim_v)
        return cuda_kernel.cpp_function(instance, "mla", *dims, *instance.tile.numbers)

    def specializations(self, instance: Instance) -> tuple[Specialization, ...]:
        """The kernels to compile: for the splits, and to merge them."""
        words = (instance.rows, instance.head_dim_v, cuda_kernel.cpp_policy(instance))
        arguments = ", ".join((*map(str, words), f"lab::Division::{self.division}"))
        merge = Specialization(
            MERGE_HEADER,
            f"lab::mla_merge<{arguments}>",
            PARAMS,
            MERGE_THREADS,
            0,
            self.include_dirs,
        )
        return self.specialization(instance), merge


def register_ledger(instance: Instance, *lines: Line) -> Ledger:
    """The register ledger of a thread, with the lines that all MLA kernels have."""
    return cuda_kernel.register_ledger(instance, *lines, ADDRESSES)
