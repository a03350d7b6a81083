"""prefill_fma: tensor cores off, fp32 FMAs on CUDA cores."""

from dataclasses import replace
from pathlib import Path

from labkernels.budget.ledger import Ledger, Line
from labkernels.kernels import fma_ledger, prefill_ledger
from labkernels.kernels.spec import (
    CUDA_CORES,
    Instance,
    KernelSpec,
    NumericPolicy,
    PrefillTile,
    policies,
)


def tiles(head_dim: int, rows: int, policy: NumericPolicy) -> tuple[PrefillTile, ...]:
    """Tile options that fit the registers; at each head_dim one fits 99 KiB of shared memory."""
    del policy  # all alike
    wide = {
        64: (PrefillTile(128, 64, 8, 1, 1), PrefillTile(64, 64, 4, 1, 2)),
        128: (PrefillTile(128, 64, 8, 1, 1), PrefillTile(64, 32, 4, 1, 2)),
        192: (PrefillTile(128, 64, 8, 1, 1), PrefillTile(64, 32, 4, 1, 2)),
        256: (PrefillTile(64, 64, 8, 1, 1), PrefillTile(32, 16, 4, 1, 2)),
    }[head_dim]
    if head_dim == 64:  # one is enough to see what the direction of the walk does
        wide += (replace(wide[1], walk="backward"),)
    few = PrefillTile(16, 32, 4, 1, 2)
    return (few, *wide) if rows <= few.q_rows else (*wide, few)


def smem(instance: Instance) -> Ledger:
    """Shared memory of a block, in bytes."""
    tile, line = instance.tile, fma_ledger.smem_line
    channels = instance.head_dim + fma_ledger.PADDING
    padded = "padded against bank conflicts"
    return prefill_ledger.smem_ledger(
        instance,
        line("Q", tile.q_rows, channels, padded),
        line("K", tile.keys, channels, padded),
        line("V", tile.keys, instance.head_dim_v),
        line("P", tile.q_rows, tile.keys, "from a lane's keys to a lane's channels"),
    )


def registers(instance: Instance) -> Ledger:
    """Operands and addresses of a thread, in registers."""
    tile, lines = instance.tile, fma_ledger.register_lines(instance)
    parcel = -(-tile.keys * instance.head_dim_v // 8 // tile.threads) * 4
    to_come = Line("V to come", parcel, "16-byte parts of V, copied during Q K^T")
    return prefill_ledger.register_ledger(instance, *lines, to_come)


SPEC = KernelSpec(
    name="prefill_fma",
    family="prefill",
    language="cuda",
    idea="fp32 FMAs on CUDA cores, a block of S and of O a lane; P never rounded.",
    parent="reference_prefill",
    folder=Path(__file__).parent,
    min_arch=80,
    policies=policies(CUDA_CORES, denominators=("unrounded",)),
    rows=None,
    tiles=tiles,
    smem=smem,
    registers=registers,
    template=prefill_ledger.cpp_instance,
    runner="labkernels.kernels.cuda_prefill",
    head_dims=(64, 128, 192, 256),
    kv=("ragged", "paged"),
)
