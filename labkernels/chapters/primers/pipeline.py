"""Runs the small pipeline and returns its sums and the order in which it fetched and summed."""

from pathlib import Path

import numpy as np

from labkernels.budget import Line, array_bytes
from labkernels.chapters.primers import machine

HEADER = "pipeline.cuh"
TILE, THREADS, STAGES = 256, 64, 2
SUM_UP = machine.SmallKernel.of(
    HEADER,
    "small_pipeline::sum_up",
    THREADS,
    (Line("the sum", 1),),
    Line("the stages", array_bytes(STAGES, TILE, dtype="fp32")),
)


def run(
    n_tiles: int, folders: tuple[Path, ...] = (machine.FOLDER,)
) -> tuple[np.ndarray, list[tuple[str, int]]]:
    """Sum n_tiles tiles of random whole numbers; return sums [threads] and the trace of thread 0.

    The trace has ("fetch", j) or ("use", j) in the order of the program.
    """
    x, sums = tiles(n_tiles), np.full(THREADS, np.nan, np.float32)
    trace = np.full(2 * n_tiles + 2, np.iinfo(np.int32).max, np.int32)
    SUM_UP.run(
        {"x": x, "sums": sums, "trace": trace, "n_tiles": n_tiles},
        grid=(1,),
        writes=("sums", "trace"),
        folders=folders,
    )
    events = [("fetch", int(j)) if j >= 0 else ("use", -1 - int(j)) for j in trace if j < 2**30]
    return sums, events


def tiles(n_tiles: int) -> np.ndarray:
    """Return tiles of small whole numbers, whose sums are exact. Shapes: [n_tiles, 256]."""
    numbers = np.random.default_rng(7).integers(-9, 9, (n_tiles, TILE)).astype(np.float32)
    return machine.aligned(numbers)
