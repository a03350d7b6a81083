"""Ranks on this machine's CPU: processes that speak by gloo."""

import contextlib
import multiprocessing
import pickle
import tempfile
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from labkernels.distributed.ranks import TIMEOUT_S, LostRank, Ranks


def on_cpus(
    work: Callable[..., Any],
    ranks: int,
    *given: Any,
    check: bool = True,
    timeout_s: float = TIMEOUT_S,
) -> list[Any]:
    """Return what work(Ranks, *given) returns on each of some processes, which end afterwards.

    work: a function of a module, which each process imports. check: the first error of a rank is
    raised here; else it stands in place of the rank's result.
    Raises: ValueError or LostRank of a rank; LostRank naming a rank that ended without a result.

    >>> from operator import attrgetter
    >>> on_cpus(attrgetter("rank", "size"), 2)
    [(0, 2), (1, 2)]
    """
    context = _context(work)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        started = [
            context.Process(target=_one, args=(work, rank, ranks, folder, timeout_s, given))
            for rank in range(ranks)
        ]
        for process in started:
            process.start()
        for process in started:
            process.join()
        codes = [process.exitcode for process in started]
        found = [_result(folder, rank, code) for rank, code in enumerate(codes)]
    lost = [result for result in found if isinstance(result, Exception)]
    if check and lost:
        raise lost[0]
    return found


def _context(work: Callable) -> BaseContext:
    """Return how processes start: from one that has imported torch and the work, if the system can.

    A fork of this process would inherit the locks of its threads.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__package__, work.__module__])
    return context


def _one(
    work: Callable, rank: int, size: int, folder: Path, timeout_s: float, given: tuple
) -> None:
    torch.set_num_threads(1)
    try:
        store = (folder / "store").as_uri()
        limit = timedelta(seconds=timeout_s)
        dist.init_process_group("gloo", store, limit, rank=rank, world_size=size)
        found = work(Ranks.join(timeout_s=timeout_s), *given)
    except Exception as error:
        found = error
    (folder / f"{rank}.part").write_bytes(pickle.dumps(found))
    (folder / f"{rank}.part").rename(folder / f"{rank}")
    with contextlib.suppress(RuntimeError):  # of a group that has lost a rank
        dist.destroy_process_group()


def _result(folder: Path, rank: int, code: int | None) -> Any:
    path = folder / f"{rank}"
    if not path.exists():
        return LostRank(f"rank {rank} ended with exit code {code}, and without a result")
    return pickle.loads(path.read_bytes())
