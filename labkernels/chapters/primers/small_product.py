"""The small kernel on which the two budgets are derived: compiled, and run on the CPU."""

import numpy as np

from labkernels.chapters.primers import machine
from labkernels.cuda.compiler import nvrtc

HEADER = "small_product.cuh"
THREADS, TILE_ROWS = 128, 32
SUMS = (4, 8, 16, 32, 64, 96, 128, 160, 192, 224, 256)


def instance(sums: int, stages: int) -> str:
    """Return the C++ name of the kernel with some sums per thread and some tiles per block."""
    return f"small_product::multiply<{sums}, {stages}>"


def smem_bytes(sums: int, stages: int) -> int:
    """Return the shared memory of a block: `stages` tiles of 32 rows of `sums` weights in fp32."""
    return 4 * stages * TILE_ROWS * sums


def compiled(sums: int, stages: int, arch: str) -> nvrtc.CompiledKernel:
    """Return the kernel as NVRTC compiles it for an architecture.

    Raises: ImportError if NVRTC is missing, CompileError if it refuses the kernel.
    """
    header = machine.FOLDER / HEADER
    return nvrtc.compile_kernel(header, instance=instance(sums, stages), defines={}, arch=arch)


def multiply(x: np.ndarray, w: np.ndarray, *, stages: int) -> np.ndarray:
    """Return x^T w in fp32 by the CPU machine. Shapes: x [rows, 128], w [rows, sums]."""
    rows, sums = w.shape
    if rows % TILE_ROWS or x.shape != (rows, THREADS):
        allowed = f"a multiple of {TILE_ROWS} rows, and [rows, {THREADS}]"
        raise ValueError(f"w.shape, x.shape = {w.shape}, {x.shape}, allowed: {allowed}")
    y = np.full((sums, THREADS), np.nan, np.float32)
    arguments = {"x": np.float32(x), "w": np.float32(w), "y": y, "n_tiles": rows // TILE_ROWS}
    machine.run(
        HEADER,
        instance(sums, stages),
        arguments,
        grid=(1,),
        threads=THREADS,
        smem_bytes=smem_bytes(sums, stages),
        writes=("y",),
    )
    return y.T
