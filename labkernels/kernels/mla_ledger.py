"""What the ledgers and templates of the CUDA MLA kernels share."""

from labkernels.budget.ledger import Ledger, Line
from labkernels.kernels.decode_ledger import cpp_function, query_line, smem_ledger
from labkernels.kernels.spec import Instance

__all__ = ["cpp_instance", "query_line", "register_ledger", "smem_ledger"]


def address_line() -> Line:
    """What every CUDA MLA kernel needs to find its keys; in registers."""
    return Line("addresses", 2 * 2 + 4, "2 pointers of 64 bits, the step's key, stage, page, row")


def register_ledger(instance: Instance, *lines: Line) -> Ledger:
    """The register ledger of a thread: a lower bound, what ptxas adds is addresses and overlap."""
    title = f"{instance.kernel} {instance.tile.label}: registers a thread"
    return Ledger(title, "registers", (*lines, address_line()))


def cpp_instance(instance: Instance) -> str:
    """`kernel::mla<kernel::Tile<T, Dqk, Dvo, q_rows, keys, warps, stages, blocks>, Policy>`."""
    dims = (instance.head_dim, instance.head_dim_v)
    return cpp_function(instance, "mla", *dims, *instance.tile.numbers)
