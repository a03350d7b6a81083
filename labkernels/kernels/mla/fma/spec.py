"""mla_fma: tensor cores off, fp32 FMAs on CUDA cores."""

from types import MappingProxyType

from labkernels.budget.compiler import Asked
from labkernels.budget.ledger import Line
from labkernels.budget.quantity import number
from labkernels.cuda.compiler.specialization import Specialization
from labkernels.kernels import cuda_kernel
from labkernels.kernels.kernel import SINCE_AMPERE, Instance, Shape
from labkernels.kernels.mla.kernel import CudaMlaKernel
from labkernels.kernels.packed_gqa import fma_ledger
from labkernels.kernels.packed_gqa.tile import PrefillTile
from labkernels.policy import CUDA_CORES, NumericPolicy, policies


class MlaFma(CudaMlaKernel):
    """A kernel in which 16 lanes share a row: each has some keys, then some channels."""

    name = "mla_fma"
    idea = "fp32 FMAs on CUDA cores, a block of S and of O per lane; P is never rounded."
    parent = "reference_mla"
    numbers = MappingProxyType(fma_ledger.NUMBERS)
    needs = SINCE_AMPERE
    policies = policies(CUDA_CORES, denominators=("unrounded",))

    def tiles(self, shape: Shape, policy: NumericPolicy) -> tuple[PrefillTile, ...]:
        """Return the tile options; the last one takes at most 99 KiB of shared memory."""
        few = (PrefillTile(16, 32, 4, 1, 2), PrefillTile(16, 16, 4, 1, 1))
        wide = (PrefillTile(64, 32, 8, 1, 1), PrefillTile(32, 32, 8, 1, 1))
        return (*few, *wide) if shape.rows <= few[0].q_rows else (*wide, *few)

    def smem_lines(self, instance: Instance) -> tuple[Line, ...]:
        """Return the shared memory of a block, in bytes."""
        of, line = cuda_kernel.sizes(instance), fma_ledger.smem_line
        channels = of.dim + fma_ledger.PADDING
        return (
            line("Q", of.rows, channels, "padded against bank conflicts"),
            line("K", of.keys, channels, "padded too; the first 512 channels are V"),
            line("P", of.rows, of.keys, "from a lane's keys to a lane's channels"),
        )

    def register_lines(self, instance: Instance) -> tuple[Line, ...]:
        """Return the operands and addresses of a thread, in registers."""
        return fma_ledger.register_lines(instance)

    def specializations(self, instance: Instance) -> tuple[Specialization, ...]:
        """Return one kernel, whose last block to arrive merges the splits."""
        return (self.specialization(instance),)

    def asked(self, instance: Instance, arch: str) -> Asked:
        """Return the features of the tile on CUDA cores."""
        return Asked({"fp32 operands": number(1)})


KERNEL = MlaFma()
