"""mla_mma: tensor cores on, the 512 channels of O dealt out to the warps."""

from pathlib import Path

from labkernels import formats
from labkernels.budget.ledger import Ledger, Line
from labkernels.budget.registers import fragment_registers
from labkernels.kernels import mla_ledger
from labkernels.kernels.spec import (
    DENOMINATORS,
    TENSOR_CORES,
    Instance,
    KernelSpec,
    NumericPolicy,
    PrefillTile,
    policies,
)

PADDING = 8  # mla_mma::padding, elements behind a row of P
FEW = (PrefillTile(16, 64, 4, 2, 1), PrefillTile(16, 32, 4, 2, 2))
SOME = (PrefillTile(32, 64, 8, 2, 1), PrefillTile(32, 32, 4, 2, 2))
# K/V tiles and stages as libraries pick them by shared memory: 228, 164 and 100 KiB an SM.
BY_SHARED_MEMORY = (
    PrefillTile(64, 64, 8, 2, 1),
    PrefillTile(64, 32, 8, 2, 1),
    PrefillTile(64, 16, 8, 1, 1),
)


def tiles(head_dim: int, rows: int, policy: NumericPolicy) -> tuple[PrefillTile, ...]:
    """Tile options, for each number of rows one that fits 99 KiB of shared memory."""
    del head_dim, policy  # all alike
    if rows <= FEW[0].q_rows:
        return (*FEW, *SOME, *BY_SHARED_MEMORY)
    if rows <= SOME[0].q_rows:
        return (*SOME, *FEW, *BY_SHARED_MEMORY)
    return (*BY_SHARED_MEMORY, *SOME, *FEW)


def smem(instance: Instance) -> Ledger:
    """Shared memory of a block, in bytes."""
    tile, rows, width = instance.tile, instance.rows, formats.named(instance.dtype).bytes
    channels, shares = instance.head_dim, tile.warps // (rows // 16)
    lines = (
        mla_ledger.query_line(instance),
        Line(
            "K stages",
            tile.stages * tile.keys * channels * width,
            f"{tile.stages} stages x {tile.keys} keys x {channels} x {width} B",
            note="their first 512 channels are V",
        ),
        Line(
            "P",
            rows * (tile.keys + PADDING) * width,
            f"{rows} rows x ({tile.keys} + {PADDING}) x {width} B",
            note="padded against bank conflicts",
        ),
        Line("maxima, then l", shares * rows * 4, f"{shares} warps x {rows} rows x 4 B"),
        Line("factors of O, and m", 2 * rows * 4, f"2 x {rows} rows x 4 B"),
    )
    return mla_ledger.smem_ledger(instance, *lines)


def registers(instance: Instance) -> Ledger:
    """Fragments and addresses of a thread, in registers."""
    rows, channels = instance.rows, instance.head_dim_v // instance.tile.warps
    return mla_ledger.register_ledger(
        instance,
        Line(
            "O accumulator",
            fragment_registers(rows, channels),
            f"{rows} x {channels} of 32 bits: the warp's channels of all rows",
        ),
        Line("P fragments", fragment_registers(rows, 16, bits=16), f"{rows} x 16 of 16 bits"),
        Line("V fragment", fragment_registers(16, 16, bits=16), "16 x 16 of 16 bits"),
        Line("m and l", 4, "of 2 of the 16 rows that the warp has scores of"),
    )


SPEC = KernelSpec(
    name="mla_mma",
    family="mla",
    language="cuda",
    idea="The warps share S and P, and each holds all rows of O in some of the 512 channels.",
    parent="mla_fma",
    folder=Path(__file__).parent,
    min_arch=80,
    policies=policies(TENSOR_CORES, denominators=DENOMINATORS),
    rows=None,
    tiles=tiles,
    smem=smem,
    registers=registers,
    template=mla_ledger.cpp_instance,
    runner="labkernels.kernels.cuda_mla",
    head_dims=(576,),
)
