"""decode_mma_n8: tensor cores on, keys on M and queries on N = 8, so that no row is padding."""

from pathlib import Path

from labkernels.budget.ledger import Ledger, Line
from labkernels.budget.registers import fragment_registers
from labkernels.kernels import decode_ledger
from labkernels.kernels.spec import (
    DecodeTile,
    Instance,
    KernelSpec,
    NumericPolicy,
    tensor_core_policies,
)


def rows(group: int) -> int:
    """Query rows of a block: one tile of 8, or two."""
    return 8 if group <= 8 else 16


def tiles(head_dim: int, rows: int, policy: NumericPolicy) -> tuple[DecodeTile, ...]:
    """Tile options that fit the registers; at each head_dim one fits 99 KiB of shared memory."""
    del rows, policy  # all alike
    return {
        64: (DecodeTile(4, 16, 3, 4), DecodeTile(4, 16, 2, 4)),
        128: (DecodeTile(4, 16, 2, 3), DecodeTile(4, 16, 3, 2)),
        256: (DecodeTile(4, 16, 2, 2), DecodeTile(2, 16, 3, 2)),
    }[head_dim]


def registers(instance: Instance) -> Ledger:
    """Fragments and addresses of a thread, in registers."""
    head_dim, keys, n = instance.head_dim, instance.tile.keys, instance.rows
    held = head_dim if n * head_dim <= 8 * 256 else 32
    return decode_ledger.register_ledger(
        instance,
        Line("Q fragments", fragment_registers(held, n, bits=16), f"{held} x {n} of 16 bits"),
        Line(
            "O accumulator",
            fragment_registers(head_dim, n),
            f"{head_dim} x {n} of 32 bits",
            note="half of decode_mma's when the group fits in 8",
        ),
        Line("S, then P", fragment_registers(keys, n), f"{keys} x {n} of 32 bits"),
        decode_ledger.rounded_p_line(instance, rows=n),
        Line("K or V fragment", fragment_registers(16, 16, bits=16), "16 x 16 of 16 bits"),
        *decode_ledger.chain_lines(instance),
        Line("m and l", 4 * n // 8, f"2 of each for queries 2t and 2t + 1, x {n // 8}"),
    )


SPEC = KernelSpec(
    name="decode_mma_n8",
    family="decode",
    language="cuda",
    idea="Keys on M, queries on N = 8: no half of the tensor-core tile is padding.",
    parent="decode_mma",
    folder=Path(__file__).parent,
    min_arch=80,
    policies=tensor_core_policies(),
    rows=rows,
    tiles=tiles,
    smem=decode_ledger.tensor_core_smem,
    registers=registers,
    template=lambda instance: decode_ledger.cpp_instance(instance, instance.rows // 8),
)
