"""backward_mma: tensor cores on, FlashAttention-2's order of work on mma.sync."""

from dataclasses import replace
from pathlib import Path

from labkernels.budget.ledger import Ledger, Line
from labkernels.budget.registers import fragment_registers
from labkernels.kernels import backward_ledger
from labkernels.kernels.backward_ledger import row_line, score_line, tile_line
from labkernels.kernels.spec import (
    EXP2,
    TENSOR_CORES,
    BackwardTile,
    Instance,
    KernelSpec,
    NumericPolicy,
    policies,
)


def tiles(head_dim: int, rows: int, policy: NumericPolicy) -> tuple[BackwardTile, ...]:
    """Tile options that fit the registers; at each head_dim one fits 99 KiB of shared memory."""
    del rows, policy  # all alike
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
        256: (
            BackwardTile(64, 64, 8, 2, 1),
            BackwardTile(32, 32, 4, 1, 1),
        ),
    }[head_dim]
    return (*atomic, *(replace(tile, dq="ordered") for tile in atomic))


def smem(instance: Instance) -> Ledger:
    """Shared memory of a block of the kernel that walks over rows, in bytes."""
    tile = instance.tile
    return backward_ledger.smem_ledger(
        instance,
        tile_line(instance, "K and V", 2, tile.keys),
        tile_line(instance, "Q and dO stages", 2 * tile.stages, tile.q_rows),
        score_line(instance, "P and dS", 2),
        row_line(instance, tile.stages),
    )


def registers(instance: Instance) -> Ledger:
    """Fragments and addresses of a thread, in registers, where S and dP are alive."""
    tile, threads = instance.tile, instance.tile.threads
    sums = fragment_registers(tile.keys, instance.head_dim, threads=threads)
    scores = fragment_registers(tile.q_rows, tile.keys, threads=threads)
    return backward_ledger.register_ledger(
        instance,
        Line("dK and dV", 2 * sums, f"2 x {tile.keys} x {instance.head_dim} of 32 bits"),
        Line("S and dP", 2 * scores, f"2 x {tile.q_rows} x {tile.keys} of 32 bits"),
        Line("Q and K fragments", 2 * 4, "2 x 16 x 16 of 16 bits"),
    )


SPEC = KernelSpec(
    name="backward_mma",
    family="backward",
    language="cuda",
    idea="A block keeps keys, with dK and dV in registers; P and dS go through shared memory.",
    parent="prefill_mma",
    folder=Path(__file__).parent,
    min_arch=80,
    policies=tuple(
        p
        for p in policies(TENSOR_CORES, denominators=("unrounded",), exp2s=EXP2)
        if p.out == "input"
    ),
    rows=None,
    tiles=tiles,
    smem=smem,
    registers=registers,
    template=backward_ledger.cpp_instance,
    runner="labkernels.kernels.cuda_backward",
    kv=("ragged",),
)
