"""What the ledgers and templates of the CUDA backward kernels share."""

from labkernels import formats
from labkernels.budget.ledger import Ledger, Line
from labkernels.kernels.decode_ledger import cpp_function, smem_ledger
from labkernels.kernels.spec import Instance

__all__ = ["cpp_instance", "register_ledger", "smem_ledger"]


def tile_line(instance: Instance, name: str, tiles: int, rows: int) -> Line:
    """So many tiles of rows by channels, of 16 bits; in bytes."""
    width = formats.named(instance.dtype).bytes
    return Line(
        name,
        tiles * rows * instance.head_dim * width,
        f"{tiles} x {rows} rows x {instance.head_dim} x {width} B",
    )


def score_line(instance: Instance, name: str, tiles: int) -> Line:
    """P and dS, or one of them, on their way from one product to the next; in bytes."""
    tile, width = instance.tile, formats.named(instance.dtype).bytes
    keys = max(tile.keys, 64)  # rows of whole 128 bytes
    return Line(
        name,
        tiles * tile.q_rows * keys * width,
        f"{tiles} x {tile.q_rows} rows x {keys} keys x {width} B",
    )


def row_line(instance: Instance, stages: int) -> Line:
    """lse2 and delta of each row; in bytes."""
    rows = instance.tile.q_rows
    return Line("lse2 and delta", 2 * stages * rows * 4, f"2 x {stages} x {rows} rows x 4 B")


def ordered_dq_smem(instance: Instance) -> Ledger:
    """Shared memory of a block of the kernel that keeps rows and walks over keys, in bytes."""
    tile = instance.tile
    return smem_ledger(
        instance,
        tile_line(instance, "Q and dO", 2, tile.q_rows),
        tile_line(instance, "K and V stages", 2 * tile.stages, tile.keys),
        score_line(instance, "dS", 1),
        row_line(instance, 1),
    )


def address_line() -> Line:
    """What every CUDA backward kernel needs to find its rows; in registers."""
    return Line(
        "addresses",
        3 * 2 + 2 * 2 + 5,
        "3 pointers and 2 strides of 64 bits, first key, head and tile ahead, 2 loop counters",
    )


def register_ledger(instance: Instance, *lines: Line) -> Ledger:
    """The register ledger of a thread: a lower bound, what ptxas adds is addresses and overlap."""
    title = f"{instance.kernel} {instance.tile.label}: registers a thread"
    return Ledger(title, "registers", (*lines, address_line()))


def cpp_instance(instance: Instance, function: str = "backward") -> str:
    """`kernel::function<kernel::Tile<T, D, q_rows, keys, ..., Ordered>, Policy>`."""
    tile = instance.tile
    return cpp_function(instance, function, instance.head_dim, *tile.numbers, tile.dq == "ordered")
