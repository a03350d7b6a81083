"""prefill_fma: tensor cores off, fp32 FMAs on CUDA cores."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from labkernels.budget.compiler import Asked
from labkernels.budget.ledger import Line
from labkernels.budget.quantity import ceil_div, number
from labkernels.kernels import cuda_kernel
from labkernels.kernels.kernel import SINCE_AMPERE, Instance, Shape
from labkernels.kernels.packed_gqa import fma_ledger
from labkernels.kernels.packed_gqa.tile import PrefillTile
from labkernels.kernels.prefill.kernel import CudaPrefillKernel
from labkernels.policy import CUDA_CORES, NumericPolicy, policies
from labkernels.variant import FEATURES


class PrefillFma(CudaPrefillKernel):
    """A kernel in which 16 lanes share a row: each has some keys, then some channels."""

    name = "prefill_fma"
    idea = "fp32 FMAs on CUDA cores, a block of S and of O per lane; P is never rounded."
    parent = "reference_prefill"
    numbers = MappingProxyType(fma_ledger.NUMBERS)
    features = FEATURES
    needs = SINCE_AMPERE
    policies = policies(CUDA_CORES, denominators=("unrounded",))

    def tiles(self, shape: Shape, policy: NumericPolicy) -> tuple[PrefillTile, ...]:
        """Return tile options that fit the registers; at each head_dim one takes at most 99 KiB."""
        wide = {
            64: (PrefillTile(128, 64, 8, 1, 1), PrefillTile(64, 64, 4, 1, 2)),
            128: (PrefillTile(128, 64, 8, 1, 1), PrefillTile(64, 32, 4, 1, 2)),
            192: (PrefillTile(128, 64, 8, 1, 1), PrefillTile(64, 32, 4, 1, 2)),
            256: (PrefillTile(64, 64, 8, 1, 1), PrefillTile(32, 16, 4, 1, 2)),
        }[shape.width]
        if shape.width == 64:  # one descending tile, to measure the effect of the order
            wide += (replace(wide[1], key_order="descending"),)
        few = PrefillTile(16, 32, 4, 1, 2)
        return (few, *wide) if shape.rows <= few.q_rows else (*wide, few)

    def smem_lines(self, instance: Instance) -> tuple[Line, ...]:
        """Return the shared memory of a block, in bytes."""
        of, line = cuda_kernel.sizes(instance), fma_ledger.smem_line
        channels = of.dim + fma_ledger.PADDING
        padded = "padded against bank conflicts"
        return (
            line("Q", of.rows, channels, padded),
            line("K", of.keys, channels, padded),
            line("V", of.keys, of.dim_v),
            line("P", of.rows, of.keys, "from a lane's keys to a lane's channels"),
        )

    def register_lines(self, instance: Instance) -> tuple[Line, ...]:
        """Return the operands and addresses of a thread, in registers."""
        of, lines = cuda_kernel.sizes(instance), fma_ledger.register_lines(instance)
        parcels = ceil_div(of.keys * of.dim_v / 8, 32 * of.warps)
        to_come = Line("V to come", 4 * parcels, "parts of 16 B, copied during Q K^T")
        return (*lines, to_come)

    def asked(self, instance: Instance, arch: str) -> Asked:
        """Return the features of the tile on CUDA cores."""
        return Asked({"fp32 operands": number(1)})

    def summation_order(self, instance: Instance) -> Mapping[str, Any] | None:
        """Return the order of the sums: warps share the keys, and 16 lanes share a row.

        The model has the right steps but not the order within a step: errors have the right size,
        but bits differ.
        """
        lanes = {"sum_bits": (3, 2, 1, 0), "lane_channels": instance.head_dim}
        return {"warps": 1, "keys": instance.tile.keys} | lanes


KERNEL = PrefillFma()
