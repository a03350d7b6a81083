"""Ledger lines of the kernels on CUDA cores, which share the tile of packed_gqa/fma_tile.cuh."""

from labkernels.budget.ledger import Line
from labkernels.budget.quantity import Quantity
from labkernels.kernels.cuda_kernel import FP32, sizes
from labkernels.kernels.kernel import Instance

PADDING = 4  # floats after a row of Q and of K
COLUMNS = 16  # lanes that share a row
NUMBERS = {"FMA_PADDING": PADDING, "FMA_COLUMNS": COLUMNS}


def smem_line(name: str, rows: Quantity, columns: Quantity, note: str = "") -> Line:
    """Return the bytes of fp32 rows in shared memory."""
    return Line(name, rows * columns * FP32, note)


def register_lines(instance: Instance) -> tuple[Line, ...]:
    """Return the registers of a lane's operands."""
    of = sizes(instance)
    rows, keys, channels = of.rows / (2 * of.warps), of.keys / COLUMNS, of.dim_v / COLUMNS
    return (
        Line("O", rows * channels, "rows x channels of a lane"),
        Line("S, then P", rows * keys, "rows x keys of a lane"),
        Line("Q", rows * 4, "4 channels of each row"),
        Line("K or V", 4, "4 channels of a key"),
        Line("m and l", 2 * rows, "of each row"),
    )
