"""Ledger lines that the CUDA decode kernels share: the bytes of warp_pipeline.cuh and state.cuh."""

from labkernels import formats
from labkernels.budget.ledger import Ledger, Line
from labkernels.budget.registers import fragment_registers
from labkernels.kernels.spec import Instance

OVERLAY = "stages or States"
STATE_PADDING = 4  # lab::state_padding


def query_line(instance: Instance) -> Line:
    """Q's rows, which stay for the whole kernel; in bytes."""
    width = formats.named(instance.dtype).bytes
    return Line(
        "Q",
        instance.rows * instance.head_dim * width,
        f"{instance.rows} rows x {instance.head_dim} x {width} B",
    )


def stage_line(instance: Instance) -> Line:
    """The K and V stages of all warps; in bytes."""
    width = formats.named(instance.dtype).bytes
    tile = instance.tile
    stages = 2 * tile.stages - 1
    return Line(
        "K and V stages",
        tile.warps * stages * tile.keys * instance.head_dim * width,
        f"{tile.warps} warps x ({tile.stages} of K + {tile.stages - 1} of V) x {tile.keys} keys"
        f" x {instance.head_dim} x {width} B",
        shares=OVERLAY,
        phase="loop",
    )


def states_lines(instance: Instance) -> tuple[Line, ...]:
    """The warps' States, which take the stages' place at the end; in bytes."""
    warps, rows, head_dim = instance.tile.warps, instance.rows, instance.head_dim
    return (
        Line(
            "States: o",
            warps * rows * (head_dim + STATE_PADDING) * 4,
            f"{warps} warps x {rows} rows x ({head_dim} + {STATE_PADDING}) x 4 B",
            note="padded against bank conflicts",
            shares=OVERLAY,
            phase="merge",
        ),
        Line(
            "States: m and l",
            2 * warps * rows * 4,
            f"2 x {warps} warps x {rows} rows x 4 B",
            shares=OVERLAY,
            phase="merge",
        ),
    )


def smem_ledger(instance: Instance, *lines: Line) -> Ledger:
    """The shared-memory ledger of a block."""
    title = f"{instance.kernel} {instance.tile.label}: shared memory a block"
    return Ledger(title, "bytes", lines)


def tensor_core_smem(instance: Instance) -> Ledger:
    """Shared memory of a block that keeps Q beside its stages, in bytes."""
    lines = (query_line(instance), stage_line(instance), *states_lines(instance))
    return smem_ledger(instance, *lines)


def address_line() -> Line:
    """What every CUDA decode kernel needs to find its keys; in registers."""
    return Line(
        "addresses",
        2 * 3 + 2 * 2 + 2 + 6,
        "3 pointers, 2 strides, 1 row offset (64 bits each), page size and 5 loop counters",
    )


def rounded_p_line(instance: Instance, *, rows: int) -> Line:
    """What the tensor cores get of the P of 16 keys; in registers."""
    parts = instance.policy.p_parts
    each = fragment_registers(rows, 16, bits=16)
    times = "hi and lo, each " if parts == 2 else ""
    return Line("P rounded", parts * each, f"{times}16 x {rows} of 16 bits")


def chain_lines(instance: Instance) -> tuple[Line, ...]:
    """The sum of 16 keys' products before fp32 adds it to O, if it does; in registers."""
    if instance.policy.accumulate != "promoted":
        return ()
    return (Line("sum of 16 keys", fragment_registers(16, 8), "16 x 8 of 32 bits"),)


def register_ledger(instance: Instance, *lines: Line) -> Ledger:
    """The register ledger of a thread: a lower bound, what ptxas adds is addresses and overlap."""
    title = f"{instance.kernel} {instance.tile.label}: registers a thread"
    return Ledger(title, "registers", (*lines, address_line()))


def cpp_type(dtype: str) -> str:
    """The lab's C++ type of a dtype."""
    return {"fp16": "lab::f16", "bf16": "lab::bf16", "fp32": "float"}[dtype]


def cpp_policy(instance: Instance) -> str:
    """The lab::Policy of an instance."""
    policy = instance.policy
    return (
        f"lab::Policy<{cpp_type(policy.out_format(instance.dtype))}, lab::Exp2::{policy.exp2},"
        f" lab::Denominator::{policy.denominator}, lab::Probability::{policy.p},"
        f" lab::Accumulate::{policy.accumulate}>"
    )


def cpp_function(instance: Instance, function: str, *arguments: int | str | bool) -> str:
    """`kernel::function<kernel::Tile<T, *arguments>, Policy>`."""
    words = [str(x).lower() if isinstance(x, bool) else str(x) for x in arguments]
    tile, name = ", ".join([cpp_type(instance.dtype), *words]), instance.kernel
    return f"{name}::{function}<{name}::Tile<{tile}>, {cpp_policy(instance)}>"


def cpp_instance(instance: Instance, *shape: int) -> str:
    """`kernel::decode<kernel::Tile<T, head_dim, *shape, tile...>, Policy>`."""
    tile = instance.tile
    numbers = (instance.head_dim, *shape, tile.warps, tile.keys, tile.stages, tile.blocks_per_sm)
    return cpp_function(instance, "decode", *numbers)
