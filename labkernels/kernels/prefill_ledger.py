"""What the ledgers and templates of the CUDA prefill kernels share."""

from labkernels.budget.ledger import Ledger, Line
from labkernels.kernels.decode_ledger import cpp_function, smem_ledger
from labkernels.kernels.spec import Instance

__all__ = ["cpp_instance", "register_ledger", "smem_ledger"]


def address_line() -> Line:
    """What every CUDA prefill kernel needs to find its keys; in registers."""
    return Line(
        "addresses",
        2 * 2 + 2 * 2 + 5,
        "2 pointers and 2 strides of 64 bits, the block's rows and keys, 2 loop counters",
    )


def register_ledger(instance: Instance, *lines: Line) -> Ledger:
    """The register ledger of a thread: a lower bound, what ptxas adds is addresses and overlap."""
    title = f"{instance.kernel} {instance.tile.label}: registers a thread"
    return Ledger(title, "registers", (*lines, address_line()))


def step_flops(instance: Instance) -> int:
    """FLOPs of both products of a step, padding counted."""
    return 2 * instance.rows * instance.tile.keys * (instance.head_dim + instance.head_dim_v)


def softmax_ops(instance: Instance) -> int:
    """Instructions of a lane in a step's softmax, exponentials counted where they are issued.

    Of a score: maximum, scale less maximum in an FMA, exponential, sum, and half a conversion; of
    an element of O: its rescaling.
    """
    scores = instance.rows * instance.tile.keys
    return 4 * scores + scores // 2 + instance.rows * instance.head_dim_v


def cpp_instance(instance: Instance, choice: str = "") -> str:
    """`kernel::prefill<kernel::Tile<T, Dqk, Dvo, q_rows, keys, ..., choice, Paged>, Policy>`.

    choice: how the block goes about its work, by default the lab::Walk of its tile.
    """
    tile, dims = instance.tile, (instance.head_dim, instance.head_dim_v)
    words = (choice or f"lab::Walk::{tile.walk}", instance.kv == "paged")
    return cpp_function(instance, "prefill", *dims, *tile.numbers, *words)
