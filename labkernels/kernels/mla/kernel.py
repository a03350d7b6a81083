"""The interface of an MLA kernel, and what the CUDA kernels of MLA share."""

from typing import Protocol

from labkernels.budget.ledger import Line
from labkernels.budget.quantity import number
from labkernels.cuda.compiler.specialization import Specialization
from labkernels.kernels.cuda_kernel import CudaKernel, cpp_function, cpp_policy
from labkernels.kernels.kernel import Instance, Kernel

PARAMS = "lab::MlaParams"
MERGE_HEADER, MERGE_THREADS = "mla/merge.cuh", 128
ADDRESSES = Line(
    "addresses", number(2) * 2 + 4, "2 pointers of 64 bits, the step's key, stage, page, row"
)


class MlaKernel(Kernel, Protocol):
    """A kernel of a few query tokens per request over latent rows."""

    operation: str = "mla"
    head_dims: tuple[int, ...] = (576,)


class CudaMlaKernel(MlaKernel, CudaKernel, Protocol):
    """An MLA kernel in CUDA C++. A second kernel merges the splits, except in mla_fma.

    division: the lab::Division by which the merge divides O by l.
    """

    params: str = PARAMS
    launch: str = "..cuda"
    addresses: tuple[Line, ...] = (ADDRESSES,)
    division: str = "exact"

    def template(self, instance: Instance) -> str:
        """Return `kernel::mla<KernelTraits<T, Dqk, Dvo, q_rows, keys, ..., blocks>, Policy>`."""
        dims = (instance.head_dim, instance.head_dim_v)
        return cpp_function(instance, "mla", *dims, *instance.tile.numbers)

    def specializations(self, instance: Instance) -> tuple[Specialization, ...]:
        """Return the kernels to compile: for the splits, and for their merge."""
        words = (instance.rows, instance.head_dim_v, cpp_policy(instance))
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
