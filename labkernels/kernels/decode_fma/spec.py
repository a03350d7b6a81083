"""decode_fma: tensor cores off, fp32 FMAs on CUDA cores."""

from pathlib import Path

from labkernels.budget.ledger import Ledger, Line
from labkernels.kernels import decode_ledger
from labkernels.kernels.spec import (
    CUDA_CORES,
    DecodeTile,
    Instance,
    KernelSpec,
    NumericPolicy,
    policies,
)

MAX_ROWS = 8  # q and o take 8 registers a row each: more rows do not fit beside the reduction
CHUNK = 8  # channels of a lane: one 16-byte copy


def rows(group: int) -> int:
    """Query rows of a block: the power of two that holds the group, at most 8."""
    return min(MAX_ROWS, 1 << (group - 1).bit_length())


def tiles(head_dim: int, rows: int, policy: NumericPolicy) -> tuple[DecodeTile, ...]:
    """Tile options that fit the registers; at each head_dim one fits 99 KiB of shared memory."""
    del policy  # all alike
    wide = rows == MAX_ROWS
    return {
        64: (DecodeTile(4, 16, 3, 2 if wide else 3), DecodeTile(4, 16, 2, 2 if wide else 4)),
        128: (DecodeTile(4, 16, 3, 2), DecodeTile(4, 16, 2, 2))
        if wide
        else (DecodeTile(4, 16, 2, 3), DecodeTile(4, 16, 3, 2)),
        256: (DecodeTile(4, 16, 2, 2), DecodeTile(2, 16, 3, 2)),
    }[head_dim]


def smem(instance: Instance) -> Ledger:
    """Shared memory of a block, in bytes."""
    tile = instance.tile
    p = Line(
        "P",
        tile.warps * tile.keys * instance.rows * 4,
        f"{tile.warps} warps x {tile.keys} keys x {instance.rows} rows x 4 B",
        note="read by all lanes as a broadcast",
        shares=decode_ledger.OVERLAY,
        phase="loop",
    )
    return decode_ledger.smem_ledger(
        instance, decode_ledger.stage_line(instance), p, *decode_ledger.states_lines(instance)
    )


def registers(instance: Instance) -> Ledger:
    """Operands and addresses of a thread, in registers."""
    rows, lanes = instance.rows, instance.head_dim // CHUNK
    rounds = instance.tile.keys * lanes // 32
    values = min(rounds * rows, lanes)
    return decode_ledger.register_ledger(
        instance,
        Line("Q", rows * CHUNK, f"{rows} rows x {CHUNK} channels, fp32"),
        Line("O", rows * CHUNK, f"{rows} rows x {CHUNK} channels, fp32"),
        Line("dot products", values, f"{values} values of one reduction over {lanes} lanes"),
        Line("K or V", CHUNK, f"{CHUNK} channels, fp32"),
        Line("scores", rounds * rows // values, "one finished score a reduction"),
        Line("m and l", 2, "of the lane's own row"),
    )


SPEC = KernelSpec(
    name="decode_fma",
    family="decode",
    language="cuda",
    idea="fp32 FMAs on CUDA cores; P never rounded.",
    parent="reference",
    folder=Path(__file__).parent,
    min_arch=80,
    policies=policies(CUDA_CORES, denominators=("unrounded",)),
    rows=rows,
    tiles=tiles,
    smem=smem,
    registers=registers,
    template=lambda instance: decode_ledger.cpp_instance(instance, instance.rows),
)
