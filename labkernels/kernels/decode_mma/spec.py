"""decode_mma: tensor cores on, the query group packed in a 16-row tile."""

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

ROWS = 16


def tiles(head_dim: int, rows: int, policy: NumericPolicy) -> tuple[DecodeTile, ...]:
    """Tile options that fit the registers; at each head_dim one fits 99 KiB of shared memory.

    P in two parts with promoted sums spills up to 9 registers at head_dim 256, and 3 at 128 before
    sm_90.
    """
    del rows, policy  # always 16 rows; the policies share the tiles
    return {
        64: (DecodeTile(4, 16, 3, 4), DecodeTile(4, 32, 2, 3), DecodeTile(4, 16, 2, 4)),
        128: (DecodeTile(4, 16, 2, 3), DecodeTile(4, 16, 3, 2), DecodeTile(4, 32, 2, 1)),
        256: (DecodeTile(4, 16, 2, 2), DecodeTile(2, 16, 3, 2)),
    }[head_dim]


def registers(instance: Instance) -> Ledger:
    """Fragments and addresses of a thread, in registers."""
    head_dim, keys = instance.head_dim, instance.tile.keys
    held = head_dim if head_dim <= 128 else 16
    return decode_ledger.register_ledger(
        instance,
        Line("Q fragments", fragment_registers(ROWS, held, bits=16), f"16 x {held} of 16 bits"),
        Line(
            "O accumulator",
            fragment_registers(ROWS, head_dim),
            f"16 x {head_dim} of 32 bits",
            note="whole in every warp: the warps split the keys",
        ),
        Line("S, then P", fragment_registers(ROWS, keys), f"16 x {keys} of 32 bits"),
        decode_ledger.rounded_p_line(instance, rows=ROWS),
        Line("K or V fragment", fragment_registers(16, 16, bits=16), "16 x 16 of 16 bits"),
        *decode_ledger.chain_lines(instance),
        Line("m and l", 4, "2 of each, for rows g and g + 8"),
    )


SPEC = KernelSpec(
    name="decode_mma",
    family="decode",
    language="cuda",
    idea="The query group fills a 16-row tensor-core tile; the warps split the keys.",
    parent="decode_fma",
    folder=Path(__file__).parent,
    min_arch=80,
    policies=tensor_core_policies(),
    rows=lambda group: ROWS,
    tiles=tiles,
    smem=decode_ledger.tensor_core_smem,
    registers=registers,
    template=decode_ledger.cpp_instance,
)
