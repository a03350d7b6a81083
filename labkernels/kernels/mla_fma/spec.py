"""mla_fma: tensor cores off, fp32 FMAs on CUDA cores."""

from pathlib import Path

from labkernels.budget.ledger import Ledger, Line
from labkernels.kernels import mla_ledger
from labkernels.kernels.spec import (
    CUDA_CORES,
    Instance,
    KernelSpec,
    NumericPolicy,
    PrefillTile,
    policies,
)

FP32_BYTES = 4
PADDING = 4  # mla_fma::padding, floats behind a row of Q and of K
COLUMNS = 16  # lanes that share a row


def tiles(head_dim: int, rows: int, policy: NumericPolicy) -> tuple[PrefillTile, ...]:
    """Tile options; the last fits 99 KiB of shared memory."""
    del head_dim, policy  # all alike
    few = (PrefillTile(16, 32, 4, 1, 2), PrefillTile(16, 16, 4, 1, 1))
    wide = (PrefillTile(64, 32, 8, 1, 1), PrefillTile(32, 32, 8, 1, 1))
    return (*few, *wide) if rows <= few[0].q_rows else (*wide, *few)


def smem(instance: Instance) -> Ledger:
    """Shared memory of a block, in bytes."""
    tile, channels = instance.tile, instance.head_dim + PADDING

    def line(name: str, rows: int, columns: int, note: str) -> Line:
        return Line(
            name,
            rows * columns * FP32_BYTES,
            f"{rows} rows x {columns} x {FP32_BYTES} B",
            note=note,
        )

    return mla_ledger.smem_ledger(
        instance,
        line("Q", tile.q_rows, channels, "padded against bank conflicts"),
        line("K", tile.keys, channels, "padded too; the first 512 channels are V"),
        line("P", tile.q_rows, tile.keys, "from a lane's keys to a lane's channels"),
    )


def registers(instance: Instance) -> Ledger:
    """Operands and addresses of a thread, in registers."""
    tile = instance.tile
    rows, keys = tile.q_rows // tile.warps // 2, tile.keys // COLUMNS
    channels = instance.head_dim_v // COLUMNS
    return mla_ledger.register_ledger(
        instance,
        Line("O", rows * channels, f"{rows} rows x {channels} channels, fp32"),
        Line("S, then P", rows * keys, f"{rows} rows x {keys} keys, fp32"),
        Line("Q", rows * 4, f"{rows} rows x 4 channels, fp32"),
        Line("K or V", 4, "4 channels of a key, fp32"),
        Line("m and l", 2 * rows, f"2 of each of {rows} rows"),
    )


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
