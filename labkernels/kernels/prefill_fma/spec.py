"""prefill_fma: tensor cores off, fp32 FMAs on CUDA cores."""

from dataclasses import replace
from pathlib import Path

from labkernels.budget.ledger import Ledger, Line
from labkernels.kernels import prefill_ledger
from labkernels.kernels.spec import (
    CUDA_CORES,
    Instance,
    KernelSpec,
    NumericPolicy,
    PrefillTile,
    policies,
)

FP32_BYTES = 4
PADDING = 4  # floats behind a row of Q and of K
COLUMNS = 16  # lanes that share a row


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
    tile, channels = instance.tile, instance.head_dim + PADDING

    def line(name: str, rows: int, columns: int, note: str = "") -> Line:
        return Line(
            name,
            rows * columns * FP32_BYTES,
            f"{rows} rows x {columns} x {FP32_BYTES} B",
            note=note,
        )

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
    tile = instance.tile
    rows, keys = tile.q_rows // tile.warps // 2, tile.keys // COLUMNS
    channels = instance.head_dim_v // COLUMNS
    parcel = -(-tile.keys * instance.head_dim_v // 8 // tile.threads) * 4
    return prefill_ledger.register_ledger(
        instance,
        Line("O", rows * channels, f"{rows} rows x {channels} channels, fp32"),
        Line("S, then P", rows * keys, f"{rows} rows x {keys} keys, fp32"),
        Line("Q", rows * 4, f"{rows} rows x 4 channels, fp32"),
        Line("K", 4, "4 channels of a key, fp32"),
        Line("V to come", parcel, "16-byte parts of V, copied during Q K^T"),
        Line("m and l", 2 * rows, f"2 of each of {rows} rows"),
    )


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
