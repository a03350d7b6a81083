"""Ranks on this machine: processes that speak by gloo on its CPU, or by NCCL, one on each GPU."""

import contextlib
import multiprocessing
import os
import pickle
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from labkernels.distributed.ranks import TIMEOUT_S, WATCHDOG, LostRank, Ranks
from labkernels.units import require_int


def on_cpus(
    work: Callable, ranks: int, *given: Any, check: bool = True, timeout_s: float = TIMEOUT_S
) -> list[Any]:
    """Return what work(Ranks, *given) returns on each of some processes, which end afterwards.

    work: a function of a module. check: the first error of a rank is raised; else it stands in
    place of the rank's result. Raises: LostRank naming a rank that ended or hung without one.

    >>> from operator import attrgetter
    >>> on_cpus(attrgetter("rank", "size"), 2)
    [(0, 2), (1, 2)]
    """
    return _on("gloo", work, ranks, ({}, *given), check=check, timeout_s=timeout_s)


def on_gpus(
    work: Callable, ranks: int, *given: Any, timeout_s: float = TIMEOUT_S, **told: str
) -> list[Any]:
    """Return what work(Ranks, *given) returns on each of this machine's first GPUs, as on_cpus.

    told: variables of their environment, as NCCL reads most of its own only once in a process.
    Multicast over NVLink stays off, unless NCCL_NVLS_ENABLE says otherwise.
    """
    if not ranks <= (here := torch.cuda.device_count()):
        raise ValueError(f"ranks = {ranks}, allowed: at most {here}, the GPUs of this machine")
    return _on("nccl", work, ranks, (told, *given), check=True, timeout_s=timeout_s)


def _on(
    backend: str, work: Callable, ranks: int, given: tuple, *, check: bool, timeout_s: float
) -> list[Any]:
    require_int("ranks", ranks, minimum=1)
    # A process that has imported the work starts the ranks. This one would hand on its threads'
    # locks to a fork.
    server = "forkserver" in multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if server else "spawn")
    context.set_forkserver_preload([__package__, work.__module__])
    with tempfile.TemporaryDirectory() as name:
        given = (backend, work, ranks, Path(name), timeout_s, given)
        started = [context.Process(target=_one, args=(rank, *given)) for rank in range(ranks)]
        for process in started:
            process.start()
        first = connection.wait([process.sentinel for process in started])
        until = time.monotonic() + timeout_s / 4  # an end is the end of all, but for one that hangs
        for process in started:
            process.join(max(0.0, until - time.monotonic()))
        found = [_result(Path(name, f"{i}"), i, x.exitcode) for i, x in enumerate(started)]
        for process in started:
            process.kill()
            process.join()
    order = sorted(range(ranks), key=lambda rank: started[rank].sentinel not in first)
    lost = [found[rank] for rank in order if isinstance(found[rank], Exception)]
    if check and lost:
        # The first end is the cause, but NCCL's watchdog ends ranks that wait for one that hangs.
        kinds = ("LostRank(", "lost another rank", "was killed")
        cause, *others = sorted(lost, key=lambda error: [kind in repr(error) for kind in kinds])
        hung = [str(error) for error in others if "was killed" in str(error)]
        raise LostRank("; ".join([str(cause), *hung])) if isinstance(cause, LostRank) else cause
    return found


def _one(
    rank: int, backend: str, work: Callable, size: int, folder: Path, timeout_s: float, given: tuple
):
    told, *arguments = given
    torch.set_num_threads(1)
    os.environ.update(told)
    how: dict[str, Any] = {"rank": rank, "world_size": size}
    if backend == "nccl":
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
        os.environ.setdefault("TORCH_NCCL_HIGH_PRIORITY", "1")  # to start beside a full GPU
        os.environ.setdefault(*WATCHDOG)
        how["device_id"] = torch.device("cuda", rank)
        torch.cuda.set_device(rank)
    limit = timedelta(seconds=timeout_s)
    try:
        dist.init_process_group(backend, (folder / "store").as_uri(), limit, **how)
        found = work(Ranks.join(timeout_s=timeout_s), *arguments)
    except Exception as error:
        found = error
    (folder / f"{rank}").write_bytes(pickle.dumps(found))
    if isinstance(found, LostRank):
        os._exit(0)  # the library's own end would wait for the lost rank once more
    with contextlib.suppress(RuntimeError, ValueError):  # of a group that has lost a rank
        dist.barrier()  # since a rank that left would close a connection that another still makes
        dist.destroy_process_group()


def _result(path: Path, rank: int, code: int | None) -> Any:
    if path.exists():
        return pickle.loads(path.read_bytes())
    if code is None:
        return LostRank(f"rank {rank} did not end with the others, and was killed")
    return LostRank(f"rank {rank} ended with exit code {code}, and without a result")
