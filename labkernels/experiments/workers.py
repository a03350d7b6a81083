"""Run compilations and NumPy work of an experiment on all cores of this machine."""

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")  # a worker's share of the cores


class Asked:
    """Work in this process that is done when its result is asked for."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.result = lambda timeout=None: work()

    def cancel(self) -> bool:
        """Return True: work starts only when its result is asked for, so it can be left undone."""
        return True


class InTurn(Executor):
    """An executor that works in this process and computes each result when it is asked for."""

    def submit(self, work, /, *arguments, **named) -> Any:
        """Return an object that does the work when its result is asked for."""
        return Asked(partial(work, *arguments, **named))


@contextlib.contextmanager
def all_cores() -> Iterator[Executor]:
    """Yield an executor over processes if there are more than two cores, else in this process."""
    cores = os.cpu_count() or 1
    if cores <= 2:
        yield InTurn()
        return
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    pool = ProcessPoolExecutor(cores, mp_context=get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
