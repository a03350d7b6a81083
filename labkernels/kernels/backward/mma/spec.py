"""backward_mma: tensor cores on, FlashAttention-2's order of work on mma.sync."""

from dataclasses import replace

from labkernels.budget.compiler import Asked
from labkernels.budget.ledger import Line
from labkernels.budget.quantity import number
from labkernels.budget.registers import fragment
from labkernels.kernels import cuda_kernel
from labkernels.kernels.backward.kernel import (
    BackwardTile,
    CudaBackwardKernel,
    pair_line,
    row_line,
    score_line,
    sums_line,
)
from labkernels.kernels.kernel import SINCE_AMPERE, Instance, Shape
from labkernels.policy import NumericPolicy


class BackwardMma(CudaBackwardKernel):
    """An ordered dq has a separate kernel, in which blocks keep rows."""

    name = "backward_mma"
    idea = "A block keeps keys, with dK and dV in registers; P and dS go through shared memory."
    parent = "prefill_mma"
    dq_by_rows = True
    needs = SINCE_AMPERE

    def tiles(self, shape: Shape, policy: NumericPolicy) -> tuple[BackwardTile, ...]:
        """Return tile options that fit the registers; at each head_dim one takes at most 99 KiB."""
        atomic = {
            64: (
                BackwardTile(128, 128, 8, 2, 1),
                BackwardTile(64, 64, 4, 2, 2),
            ),
            128: (
                BackwardTile(64, 64, 4, 2, 2),
                BackwardTile(64, 128, 8, 2, 1),
                BackwardTile(32, 64, 4, 2, 2),
            ),
            192: (
                BackwardTile(64, 64, 8, 2, 1),
                BackwardTile(32, 32, 4, 2, 1),
            ),
            256: (
                BackwardTile(64, 64, 8, 2, 1),
                BackwardTile(32, 32, 4, 1, 1),
            ),
        }[shape.width]
        return (*atomic, *(replace(tile, dq="ordered") for tile in atomic))

    def smem_lines(self, instance: Instance) -> tuple[Line, ...]:
        """Return the shared memory of a block of the kernel that goes through rows, in bytes."""
        of = cuda_kernel.sizes(instance)
        return (
            pair_line(instance, "K and V", of.keys),
            pair_line(instance, "Q and dO stages", of.stages * of.rows),
            score_line(instance, "P and dS", 2),
            row_line(instance, of.stages),
        )

    def register_lines(self, instance: Instance) -> tuple[Line, ...]:
        """Return fragments and addresses of a thread, in registers, where S and dP are alive."""
        of = cuda_kernel.sizes(instance)
        scores = fragment(of.rows, of.keys, warps=of.warps)
        return (
            sums_line(instance, of.warps),
            Line("S and dP", 2 * scores),
            Line("Q and K fragments", 2 * fragment(16, 16, bits=16)),
        )

    def asked(self, instance: Instance, arch: str) -> Asked:
        """Return the features of a warp that reads stages shared by the block."""
        of = cuda_kernel.sizes(instance)
        features = cuda_kernel.step_features(instance, keys=of.keys, warps=of.warps)
        return Asked(features | {"P and dS": number(1)})


KERNEL = BackwardMma()
