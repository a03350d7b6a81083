"""Who does the work of an experiment: this process, its children, or the workers of Dask.

Each is a `concurrent.futures.Executor`. A worker that dies loses no work: it is done again by
another, and after TRIES deaths it fails with the reason.
"""

import contextlib
import multiprocessing
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import (
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from labkernels.records import files

T = TypeVar("T")
TRIES = 3
CONNECT_S, WAIT_S = 10, 60  # seconds for a scheduler's answer, and for its first worker
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")


class Asked:
    """Work in this process that is done when its result is asked for."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.result = lambda timeout=None: work()


class InTurn(Executor):
    """An executor that works in this process and computes each result when it is asked for."""

    def submit(self, work, /, *arguments, **named) -> Any:
        """Return an object that does the work when its result is asked for."""
        return Asked(partial(work, *arguments, **named))


class Processes(ThreadPoolExecutor):
    """An executor over processes, each in the care of a thread that makes it anew if it dies."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self._own, self._ended = threading.local(), threading.Event()

    def submit(self, work, /, *arguments, **named) -> Future:
        """Return the future of work(*arguments, **named), which has to be of a module."""
        return super().submit(self._tried, partial(work, *arguments, **named))

    def _tried(self, work: Callable[[], object]) -> object:
        for _ in range(TRIES):
            if self._ended.is_set():
                raise CancelledError
            if not hasattr(self._own, "pool"):
                self._own.pool = ProcessPoolExecutor(1, get_context("spawn"), _one_thread)
            try:
                return self._own.pool.submit(work).result()
            except BrokenProcessPool:
                del self._own.pool
        raise RuntimeError(f"its worker was killed or crashed, {TRIES} times")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        """End the processes when what they do is done; other work is not begun."""
        self._ended.set()
        super().shutdown(wait, cancel_futures=cancel_futures)


def _one_thread() -> None:
    """Leave this process its share of the cores, before it imports a library."""
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))


def all_cores() -> Executor:
    """Return an executor over processes if there are more than two cores, else in this process."""
    cores, child = os.cpu_count() or 1, multiprocessing.current_process().daemon
    return InTurn() if cores <= 2 or child else Processes(cores)  # a daemon has no children


@contextlib.contextmanager
def of_dask(address: str) -> Iterator[Executor]:
    """Yield an executor over the workers of a Dask scheduler, which tries work again itself.

    Raises: ValueError if Dask is missing, or no scheduler or worker is there.
    """
    try:
        from distributed import Client
    except ImportError:
        mend = "pip install 'labkernels[cluster]'"
        raise ValueError(f"scheduler needs Dask, which is not installed: {mend}") from None
    words = "allowed: HOST:PORT of a running `dask scheduler`"
    if not re.fullmatch(r".+:\d+", address):
        raise ValueError(f"scheduler = {address!r}, {words}")
    try:
        client = Client(address, timeout=CONNECT_S, set_as_default=False)
    except OSError:
        raise ValueError(f"scheduler = {address!r} does not answer; {words}") from None
    with client:
        try:
            client.wait_for_workers(1, timeout=WAIT_S)
        except TimeoutError:
            words = "allowed: `dask worker ADDRESS --nthreads 1`, once for each GPU"
            raise ValueError(f"scheduler = {address!r} has no worker; {words}") from None
        pool = client.get_executor(pure=False)
        try:
            yield pool
        finally:
            pool.shutdown(wait=False)


def executor(scheduler: str, *, alone: bool) -> contextlib.AbstractContextManager[Executor]:
    """Return Dask's workers if a scheduler is named, else this process or all of its cores."""
    if scheduler:
        return of_dask(scheduler)
    return InTurn() if alone else all_cores()


def alone(work: Callable[..., T], *given: Any, **named: Any) -> T:
    """Return work(*given, **named), done while no other work whose time counts is.

    It has every GPU that this process sees for itself, since a cell may use several, or the
    machine where no GPU is in use.
    """
    torch = sys.modules.get("torch")
    count = torch.cuda.device_count() if torch is not None and torch.cuda.is_available() else 0
    uuids = [str(torch.cuda.get_device_properties(i).uuid) for i in range(count)]
    with contextlib.ExitStack() as held:
        for key in sorted(uuids) or ["cpu"]:  # in one order, so that no two wait for each other
            folder = Path(tempfile.gettempdir()) / f"labkernels-{os.getuid()}" / key
            held.enter_context(files.one_writer(folder))
        return work(*given, **named)
