"""Grades answers that are the loop of a pipeline: its sums, and whether copies and sums overlap."""

import numpy as np

from labkernels.chapters.exercises.compiled import Takes, small
from labkernels.chapters.exercises.exercise import Exercise
from labkernels.chapters.exercises.overlay import folder_with
from labkernels.chapters.exercises.report import fault_of
from labkernels.chapters.primers import machine, pipeline
from labkernels.cuda.host import banks
from labkernels.cuda.host.build import HostKernelError

LENGTHS = (1, 2, 37, 5)  # tiles
OUTPUTS, ON_GPU = {"sums": "fp32"}, ""
# Reads its own part of the last tile, which the machine refuses while the copy is on its way.
_LOOKS_AHEAD = """
LAB_DEVICE float looks_ahead(Smem& smem, const Params& p, Trace& trace, float sum, int j) {
  if (j + 2 == p.n_tiles) sum = sum + 0.f * smem.stage[(j + 1) % stages][thread_x() * 4];
  return consume(smem, p, trace, sum, j);
}
#define consume looks_ahead
"""
# The sums are whole numbers unless a thread comes to more barriers than tiles.
_COUNTS_BARRIERS = """
inline int barriers[threads];
}  // namespace small_pipeline
namespace lab {
LAB_DEVICE void counted_sync_block() {
  ++small_pipeline::barriers[thread_x()];
  sync_block();
}
}  // namespace lab
namespace small_pipeline {
LAB_DEVICE void first_fetch(Smem& smem, const Params& p, Trace& trace, int j) {
  if (j == 0) barriers[thread_x()] = 0;
  fetch(smem, p, trace, j);
}
LAB_DEVICE float counting(Smem& smem, const Params& p, Trace& trace, float sum, int j) {
  sum = consume(smem, p, trace, sum, j);
  return barriers[thread_x()] > j + 1 ? sum + 0.1f : sum;
}
#define sync_block counted_sync_block
#define fetch first_fetch
#define consume counting
"""


def run(exercise: Exercise, answer: str) -> dict[str, np.ndarray]:
    """Run arrays of several lengths; a trace is 1 + j for a fetch of tile j, -1 - j for its use.

    `overlaps` says whether the copy of a tile is still on its way when the tile before is summed,
    and `few barriers` whether no thread comes to more barriers than tiles.
    """
    folder = folder_with(*exercise.place, answer)
    results = {}
    for n_tiles in LENGTHS:
        sums, events = pipeline.run(n_tiles, (folder,))
        results[f"sums of {n_tiles}"] = sums
        signs = [1 + j if what == "fetch" else -1 - j for what, j in events]
        results[f"trace of {n_tiles}"] = np.array(signs)
    if banks.listed() is None and not machine.uses_gpu():  # neither of these runs with checks
        results["overlaps"] = np.array(_overlaps(exercise, answer))
        counting = folder_with(*exercise.place, answer, _COUNTS_BARRIERS)
        sums, _ = pipeline.run(LENGTHS[-1], (counting,))
        results["few barriers"] = np.array((sums == np.rint(sums)).all())
    return results


def _overlaps(exercise: Exercise, answer: str) -> bool:
    """Return whether a read of the last tile, one tile early, meets a copy that is on its way."""
    folder = folder_with(*exercise.place, answer, _LOOKS_AHEAD)
    for n_tiles in (2, 3, 4, 5):
        try:
            pipeline.run(n_tiles, (folder,))
        except HostKernelError as error:
            if fault_of(str(error)) == "in flight":
                continue
        return False
    return True


def judge(exercise: Exercise, results: dict[str, np.ndarray]) -> list[str]:
    """Return the first length whose sums are wrong, or the first tile that was fetched too late."""
    for n_tiles in LENGTHS:
        exact = pipeline.tiles(n_tiles).reshape(-1, pipeline.THREADS).sum(axis=0)
        wrong = np.flatnonzero(results[f"sums of {n_tiles}"] != exact)
        if len(wrong):
            return [f"Of {n_tiles} tiles, thread {wrong[0]} has a wrong sum."]
        trace = results[f"trace of {n_tiles}"].tolist()
        for j in range(n_tiles - 1):
            if trace.index(2 + j) > trace.index(-1 - j):
                return [f"Tile {j + 1} of {n_tiles} is fetched only after tile {j} was summed."]
    if not results["overlaps"]:
        return ["When a tile is summed, the copy of the next one has been waited for already."]
    if not results["few barriers"]:
        return ["The threads come to more barriers of the block than there are tiles."]
    return []


def remarks(exercise: Exercise, results: dict[str, np.ndarray]) -> list[str]:
    """Return what the trace shows."""
    trace = results[f"trace of {LENGTHS[-1]}"].tolist()
    words = [f"fetch {at - 1}" if at > 0 else f"sum {-1 - at}" for at in trace]
    return [
        f"The sums of {', '.join(map(str, LENGTHS))} tiles are exact, and nothing races.",
        f"Each copy is on its way while the tile before it is summed: {', '.join(words)}.",
    ]


def takes(exercise: Exercise, answer: str) -> list[Takes]:
    """Return what the kernel takes."""
    return small([pipeline.SUM_UP], (folder_with(*exercise.place, answer),))
