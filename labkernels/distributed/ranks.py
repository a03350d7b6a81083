"""The ranks that share a computation: what they exchange, and how they fail together."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist

from labkernels.kernels.call import nothing

Made = TypeVar("Made")
TIMEOUT_S = 40.0  # so that all end within a minute, and a rank that hangs is killed
# Torch's watchdog ends a process four times this long after a time-out. By default it waits a
# minute, for a dump of what NCCL did. NCCL's groups read the variable when they are made.
WATCHDOG = ("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "250")
_EXCHANGES = {  # torch 2.13 gave two of these functions new names, and warns of the old ones
    "all-gather": getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor,
    "reduce-scatter": getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor,
    "all-to-all": dist.all_to_all_single,
}


class LostRank(RuntimeError):
    """Another rank has ended, or has not answered within the time-out."""


@dataclass(frozen=True, eq=False)
class Ranks:
    """The processes of a group, seen from one of them; by default one, which sends nothing."""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None
    timeout_s: float = TIMEOUT_S

    @classmethod
    def join(cls, members: list[int] | None = None, *, timeout_s: float = TIMEOUT_S) -> Self:
        """Return the ranks of a new group with a time-out; every process must call this alike.

        torch.distributed.init_process_group comes first, with gloo on CPUs or NCCL on GPUs.
        members: global ranks, by default all; a process that is none gets rank = -1.
        Torch's watchdog ends a process that waits for a lost rank of NCCL, but never one that
        replays a CUDA graph. on_gpus and torchrun end all their processes when one has died; no
        one sees a rank that hangs while others replay.
        """
        os.environ.setdefault(*WATCHDOG)
        world = cls(dist.get_rank(), dist.get_world_size(), timeout_s=timeout_s)
        limit = timedelta(seconds=timeout_s)
        group = world.ask("joining", dist.new_group, members, timeout=limit)
        size = world.size if members is None else len(members)
        return cls(dist.get_rank(group), size, group, timeout_s)

    def agree(self, make: Callable[[], tuple[Made, Mapping[str, object]]]) -> Made:
        """Return what `make` makes, if no rank refuses and all ranks have equal facts.

        Raises: on every rank the same ValueError, which names the first rank that differs.
        """
        if not 0 <= self.rank < self.size:  # as of a process that is no member of the group
            raise ValueError(f"ranks.rank = {self.rank}, allowed: 0 to {self.size - 1}")
        made, words, facts = None, "", {}
        try:
            made, facts = make()
        except (TypeError, ValueError) as error:
            words = str(error)
        told: list[Any] = [(words, {name: str(value) for name, value in facts.items()})]
        if self.size > 1:
            own, told = told[0], told * self.size
            self.ask("a comparison of arguments", dist.all_gather_object, told, own, self.group)
        for rank, (refused, _) in enumerate(told):
            if refused:
                raise ValueError(f"rank {rank}: {refused}" if self.size > 1 else refused)
        first = told[0][1]
        for rank, (_, found) in enumerate(told):
            for name in found:
                if found[name] != first.get(name):
                    words = f"rank {rank}: {name} = {found[name]}, allowed: {first.get(name)}"
                    raise ValueError(f"{words}, as on rank 0")
        return made

    def exchange(self, kind: str, received: torch.Tensor, sent: torch.Tensor) -> None:
        """Run an exchange of _EXCHANGES on contiguous tensors, whose parts are those of ranks."""
        received, sent = received.view(-1), sent.view(-1)
        if self.size == 1:
            received.copy_(sent)
        else:
            self.ask(kind, _EXCHANGES[kind], received, sent, group=self.group)

    def pass_on(self, sent: torch.Tensor, received: torch.Tensor) -> Callable[[], None]:
        """Begin to send to the next rank of the ring; return what waits for the one before.

        NCCL copies in a stream of its own, beside the kernels; a CUDA graph may capture both.
        """
        if self.size == 1:
            received.copy_(sent)
            return nothing
        to, source = (
            dist.get_global_rank(self.group, (self.rank + n) % self.size) for n in (1, -1)
        )
        calls = [
            dist.P2POp(dist.isend, sent, to, self.group),
            dist.P2POp(dist.irecv, received, source, self.group),
        ]
        works = self.ask("the ring", dist.batch_isend_irecv, calls)

        def wait() -> None:
            for work in works:
                self.ask("the ring", work.wait)

        return wait

    def ask(self, what: str, call: Callable, *given: Any, **options: Any) -> Any:
        """Return what a function of torch.distributed returns; raise LostRank where it fails."""
        try:
            return call(*given, **options)
        except RuntimeError as error:
            line = str(error).partition("\n")[0]
            reason = (line.partition("] ")[2] or line).partition(". ")[0]
            words = f"rank {self.rank} of {self.size} lost another rank in {what}: {reason}"
            raise LostRank(f"{words} (time-out {self.timeout_s:g} s)") from None
