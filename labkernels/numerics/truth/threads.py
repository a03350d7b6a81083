"""Work on a problem's blocks of rows, on as many threads as NumPy's products may use.

A product of one block is small, and a second thread of the BLAS library spins while it waits for
each: on a busy machine two such threads take ten times as long as one. Blocks are independent, so
that each thread takes whole blocks here, and its products have one thread. So have those of a small
problem, whose blocks one thread takes. So it is with torch's tensors on the CPU, where
`torch.get_num_threads` says how many threads there are.
"""

import contextvars
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import numpy as np

from labkernels.numerics.arrays import namespace
from labkernels.numerics.truth.problem import HELD_SCORES, Problem
from labkernels.numerics.truth.rows import Rows

try:
    from threadpoolctl import ThreadpoolController
except ImportError:  # a GPU machine may have nothing but torch; its tensors need no threads
    ThreadpoolController = None

Result = TypeVar("Result")
_MOST = 8  # threads: each needs up to 100 MB
_LEAST_SCORES = 2**20  # a problem with fewer takes milliseconds
_ALLOWED: contextvars.ContextVar[int] = contextvars.ContextVar("allowed")


@contextmanager
def one_per_product() -> Iterator[None]:
    """Let each product have one thread here, and leave the other threads to blocks of rows."""
    if ThreadpoolController is None:
        yield
        return
    before = _ALLOWED.set(_allowed())
    try:
        with _blas().limit(limits=1):
            yield
    finally:
        _ALLOWED.reset(before)


def over_rows(problem: Problem, work: Callable[[Rows], Result]) -> Iterator[tuple[Rows, Result]]:
    """Yield each block of rows of a problem with the result of the work on it, in order.

    The results do not depend on the number of threads. The work may write what only its own block
    of rows owns.
    """
    rows, xp = problem.row_blocks(), namespace(problem.q)
    allowed = _allowed() if xp is np else xp.get_num_threads()
    threads = min(allowed, _MOST, len(rows)) if _is_large(problem) else 1
    state = np.geterr()  # a new thread starts with NumPy's own warnings

    def quiet(block: Rows) -> Result:
        with np.errstate(**state), block.holding(HELD_SCORES):
            return work(block)

    alone = one_per_product() if xp is np else _one_per_function(xp)
    if threads < 2:
        small = xp is np and not _is_large(problem)
        with alone if small else nullcontext():
            yield from ((block, quiet(block)) for block in rows)
        return

    with alone, ThreadPoolExecutor(threads) as pool:
        yield from zip(rows, pool.map(quiet, rows), strict=True)


@contextmanager
def _one_per_function(torch: Any) -> Iterator[None]:
    """Let each function of torch have one thread here, also in threads that start here."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _is_large(problem: Problem) -> bool:
    return problem.machine == "cpu" and problem.n_scores >= _LEAST_SCORES


@functools.cache
def _blas() -> Any:
    return ThreadpoolController().select(user_api="blas")


def _allowed() -> int:
    """Return how many threads a product may have: by default the cores, or OMP_NUM_THREADS."""
    if ThreadpoolController is None:
        return 1
    counts = (library["num_threads"] for library in _blas().info())
    return _ALLOWED.get(max(counts, default=1))
