"""mla_fma: tensor cores off, fp32 FMAs on CUDA cores."""

from pathlib import Path

from labkernels.budget.ledger import Ledger
from labkernels.kernels import fma_ledger, mla_ledger
from labkernels.kernels.spec import (
    CUDA_CORES,
    Instance,
    KernelSpec,
    NumericPolicy,
    PrefillTile,
    policies,
)


def tiles(head_dim: int, rows: int, policy: NumericPolicy) -> tuple[PrefillTile, ...]:
    """Tile options; the last fits 99 KiB of shared memory."""
    del head_dim, policy  # all alike
    few = (PrefillTile(16, 32, 4, 1, 2), PrefillTile(16, 16, 4, 1, 1))
    wide = (PrefillTile(64, 32, 8, 1, 1), PrefillTile(32, 32, 8, 1, 1))
    return (*few, *wide) if rows <= few[0].q_rows else (*wide, *few)


def smem(instance: Instance) -> Ledger:
    """Shared memory of a block, in bytes."""
    tile, line = instance.tile, fma_ledger.smem_line
    channels = instance.head_dim + fma_ledger.PADDING
    return mla_ledger.smem_ledger(
        instance,
        line("Q", tile.q_rows, channels, "padded against bank conflicts"),
        line("K", tile.keys, channels, "padded too; the first 512 channels are V"),
        line("P", tile.q_rows, tile.keys, "from a lane's keys to a lane's channels"),
    )


def registers(instance: Instance) -> Ledger:
    """Operands and addresses of a thread, in registers."""
    return mla_ledger.register_ledger(instance, *fma_ledger.register_lines(instance))


SPEC = KernelSpec(
    name="mla_fma",
    family="mla",
    language="cuda",
    idea="fp32 FMAs on CUDA cores, a block of S and of O a lane; P never rounded.",
    parent="reference_mla",
    folder=Path(__file__).parent,
    min_arch=80,
    policies=policies(CUDA_CORES, denominators=("unrounded",)),
    rows=None,
    tiles=tiles,
    smem=smem,
    registers=registers,
    template=mla_ledger.cpp_instance,
    runner="labkernels.kernels.cuda_mla",
    head_dims=(576,),
)
