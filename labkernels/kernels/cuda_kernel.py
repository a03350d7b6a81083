"""What the ledgers and C++ names of CUDA kernels share."""

from dataclasses import dataclass

from labkernels import formats
from labkernels.budget.compiler import operands
from labkernels.budget.ledger import Ledger, Line
from labkernels.budget.quantity import Quantity, ceil_div, number, symbol
from labkernels.budget.registers import fragment, lanes_of
from labkernels.cuda.compiler.specialization import STATE_PADDING
from labkernels.kernels.kernel import Instance

OVERLAY = "stages or States"


FP32 = number(4, "B")


@dataclass(frozen=True)
class Sizes:
    """The symbols of an instance's ledgers, as book/notation.md has them.

    rows and keys: of a block's step (in decode, of a warp's step); dim, dim_v: channels of K and of
    V; width: bytes per element.
    """

    rows: Quantity
    keys: Quantity
    warps: Quantity
    stages: Quantity
    dim: Quantity
    dim_v: Quantity
    width: Quantity


def sizes(instance: Instance) -> Sizes:
    """Return the symbols with the values of an instance."""
    tile = instance.tile
    dim = symbol("D", instance.head_dim, "channels of Q and K", "channels")
    return Sizes(
        rows=symbol("R", instance.rows, "query rows", "rows"),
        keys=symbol("T", tile.keys, "keys of a step", "keys"),
        warps=symbol("W", tile.warps, "warps of a block", "warps"),
        stages=symbol("d", tile.stages, "stages: the depth of the pipeline", "stages"),
        dim=dim,
        dim_v=dim
        if instance.head_dim == instance.head_dim_v
        else symbol("D_v", instance.head_dim_v, "channels of V and O", "channels"),
        width=symbol("b", formats.named(instance.dtype).bytes, "bytes of an element", "B"),
    )


def query_line(instance: Instance) -> Line:
    """Return the bytes of the rows of Q, which stay in shared memory for the whole kernel."""
    of = sizes(instance)
    return Line("Q", of.rows * of.dim * of.width)


def padding_line(lines: tuple[Line, ...], alignment: int) -> Line:
    """Return the bytes lost when the total is rounded up to a multiple of an alignment."""
    rest = -sum(line.amount for line in lines) % alignment
    meaning = f"B up to a multiple of {alignment:,} B"
    return Line("padding", symbol("p", rest, meaning))


def states_lines(instance: Instance) -> tuple[Line, ...]:
    """Return the bytes of the warps' States, which replace the stages at the end of the kernel."""
    of = sizes(instance)
    return (
        Line(
            "States: o",
            of.warps * of.rows * (of.dim_v + STATE_PADDING) * FP32,
            note="padded against bank conflicts",
            shares=OVERLAY,
            phase="merge",
        ),
        Line(
            "States: m and l",
            2 * of.warps * of.rows * FP32,
            shares=OVERLAY,
            phase="merge",
        ),
    )


def smem_ledger(instance: Instance, *lines: Line) -> Ledger:
    """Return the shared-memory ledger of a block."""
    title = f"{instance.kernel} {instance.tile.label}: shared memory per block"
    return Ledger(title, "bytes", lines)


def step_features(
    instance: Instance, *, keys: Quantity | int, warps: Quantity | int
) -> dict[str, Quantity]:
    """Return the features of a loop of mma.sync products with operands in shared memory.

    keys: keys of K or V that a warp reads per step, for "loaded ahead". warps: warps that share the
    copies of a step's K.
    """
    of = sizes(instance)
    return {
        "copies": ceil_div(of.keys * of.dim * of.width, number(16, "B") * lanes_of(warps)),
        "loaded ahead": operands(fragment(keys, of.dim, bits=16)),
    }


def register_ledger(instance: Instance, *lines: Line) -> Ledger:
    """Return the register ledger of a thread, without the registers that ptxas adds."""
    title = f"{instance.kernel} {instance.tile.label}: registers per thread"
    return Ledger(title, "registers", lines)


def cpp_type(dtype: str) -> str:
    """Return the lab's C++ type of a dtype."""
    return {"fp16": "lab::f16", "bf16": "lab::bf16", "fp32": "float"}[dtype]


def cpp_policy(instance: Instance) -> str:
    """Return the lab::Policy of an instance."""
    policy = instance.policy
    return (
        f"lab::Policy<{cpp_type(policy.out_format(instance.dtype))}, lab::Exp2::{policy.exp2},"
        f" lab::Denominator::{policy.denominator}, lab::Probability::{policy.p},"
        f" lab::Accumulate::{policy.accumulate}>"
    )


def cpp_function(instance: Instance, function: str, *arguments: int | str | bool) -> str:
    """Return `kernel::function<kernel::KernelTraits<T, *arguments>, Policy>`."""
    words = [str(x).lower() if isinstance(x, bool) else str(x) for x in arguments]
    tile, name = ", ".join([cpp_type(instance.dtype), *words]), instance.kernel
    return f"{name}::{function}<{name}::KernelTraits<{tile}>, {cpp_policy(instance)}>"
