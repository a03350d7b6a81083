"""Ranks on this machine: processes that speak by gloo on its CPU, or by NCCL, one on each GPU."""

import contextlib
import multiprocessing
import os
import pickle
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from labkernels.distributed.ranks import TIMEOUT_S, LostRank, Ranks


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
    return _Launch("gloo", work, ranks, given, timeout_s).results(check=check)


def on_gpus(
    work: Callable, ranks: int, *given: Any, timeout_s: float = TIMEOUT_S, **told: str
) -> list[Any]:
    """Return what work(Ranks, *given) returns on each of this machine's first GPUs, as on_cpus.

    told: variables of the ranks' environment, as NCCL reads most of its own once in a process.
    Multicast over NVLink stays off, unless NCCL_NVLS_ENABLE says otherwise.
    """
    return _Launch("nccl", work, ranks, given, timeout_s, told).results(check=True)


@dataclass(frozen=True)
class _Launch:
    """Processes that each do the same work as a rank."""

    backend: str
    work: Callable
    size: int
    given: tuple
    timeout_s: float
    told: dict[str, str] = field(default_factory=dict)

    def results(self, *, check: bool) -> list[Any]:
        # A process that has imported the work starts the ranks. This one would hand on its threads'
        # locks to a fork.
        server = "forkserver" in multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context("forkserver" if server else "spawn")
        context.set_forkserver_preload([__package__, self.work.__module__])
        with tempfile.TemporaryDirectory() as name:
            started = [
                context.Process(target=self.rank, args=(rank, Path(name)))
                for rank in range(self.size)
            ]
            for process in started:
                process.start()
            connection.wait([process.sentinel for process in started])
            # an end is the end of all, but for one that hangs
            until = time.monotonic() + self.timeout_s / 4
            for process in started:
                process.join(max(0.0, until - time.monotonic()))
            found = [_result(Path(name, f"{i}"), i, x.exitcode) for i, x in enumerate(started)]
            for process in started:
                process.kill()
                process.join()
        lost = [result for result in found if isinstance(result, Exception)]
        if check and lost:
            raise min(lost, key=lambda error: "lost another rank" in str(error))  # a cause, if any
        return found

    def rank(self, rank: int, folder: Path) -> None:
        """Do the work of a rank in its process, and leave the result in a folder."""
        torch.set_num_threads(1)
        os.environ.update(self.told)
        how: dict[str, Any] = {"rank": rank, "world_size": self.size}
        if self.backend == "nccl":
            os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
            os.environ.setdefault("TORCH_NCCL_HIGH_PRIORITY", "1")  # to start beside a full GPU
            how["device_id"] = torch.device("cuda", rank)
            torch.cuda.set_device(rank)
        limit = timedelta(seconds=self.timeout_s)
        try:
            dist.init_process_group(self.backend, (folder / "store").as_uri(), limit, **how)
            found = self.work(Ranks.join(timeout_s=self.timeout_s), *self.given)
        except Exception as error:
            found = error
        (folder / f"{rank}").write_bytes(pickle.dumps(found))
        if isinstance(found, LostRank):
            os._exit(0)  # the library's own end would wait for the lost rank once more
        with contextlib.suppress(RuntimeError, ValueError):  # of a group that has lost a rank
            dist.barrier()  # a rank that left would close a connection that another still makes
            dist.destroy_process_group()


def _result(path: Path, rank: int, code: int | None) -> Any:
    if path.exists():
        return pickle.loads(path.read_bytes())
    if code is None:
        return LostRank(f"rank {rank} did not end with the others, and was killed")
    return LostRank(f"rank {rank} ended with exit code {code}, and without a result")
