"""A map over all cores of this machine, for what an experiment computes in NumPy."""

import contextlib
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")  # a worker's share of the cores


@contextlib.contextmanager
def all_cores() -> Iterator:
    """A map that keeps the order: over processes where there are more than two cores."""
    cores = os.cpu_count() or 1
    if cores <= 2:
        yield map
        return
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    try:
        with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
            yield pool.map
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
