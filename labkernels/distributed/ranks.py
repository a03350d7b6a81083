"""The ranks that share a computation: what they exchange, and how they fail together."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist

Made = TypeVar("Made")
TIMEOUT_S = 45.0  # so that the ranks that are left end within a minute

# torch 2.13 gave these two functions new names, and warns of the old ones.
_gather_one = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter_one = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class LostRank(RuntimeError):
    """Another rank has ended, or has not answered within the time-out."""


@dataclass(frozen=True, eq=False)
class Ranks:
    """The processes of a group, seen from one of them.

    rank: this process, of `size`. group: None where there is one rank, which sends nothing.
    """

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None
    timeout_s: float = TIMEOUT_S

    @classmethod
    def join(cls, members: list[int] | None = None, *, timeout_s: float = TIMEOUT_S) -> Self:
        """Return the ranks of a new group with a time-out; every process must call this alike.

        torch.distributed.init_process_group comes first: with gloo on CPUs, with NCCL on GPUs.
        members: global ranks, by default all. A process that is no member gets rank = -1.
        """
        group = dist.new_group(members, timeout=timedelta(seconds=timeout_s))
        rank = dist.get_rank(group)
        size = len(members) if members is not None else dist.get_world_size()
        return cls(rank, size, group, timeout_s)

    def agree(self, make: Callable[[], tuple[Made, Mapping[str, object]]]) -> Made:
        """Return what `make` makes, if no rank refuses and all ranks have equal facts.

        Raises: on every rank the same ValueError, which names the first rank that differs.
        """
        made, words, facts = None, "", {}
        try:
            made, facts = make()
        except (TypeError, ValueError) as error:
            words = str(error)
        told = self._told((words, {name: str(value) for name, value in facts.items()}))
        for rank, (refused, _) in enumerate(told):
            if refused:
                raise ValueError(f"rank {rank}: {refused}" if self.size > 1 else refused)
        first = told[0][1]
        for rank, (_, found) in enumerate(told):
            for name, value in found.items():
                if value != first.get(name):
                    allowed = f"{first.get(name)}, as on rank 0"
                    raise ValueError(f"rank {rank}: {name} = {value}, allowed: {allowed}")
        return made

    def _told(self, own: Any) -> list[Any]:
        if self.size == 1:
            return [own]
        found: list[Any] = [None] * self.size
        self._ask("a comparison of arguments", dist.all_gather_object, found, own)
        return found

    def gather(self, rows: torch.Tensor, own: torch.Tensor) -> None:
        """Write to row i of a tensor [ranks, ...] what rank i has as its own."""
        if self.size == 1:
            rows[0].copy_(own)
        else:
            self._ask("all-gather", _gather_one, rows.view(-1), own.view(-1))

    def sum_of_rows(self, own: torch.Tensor, rows: torch.Tensor) -> None:
        """Write the sum over ranks of this rank's row of `rows`, [ranks, ...], to `own`.

        The library chooses the order of the sum.
        """
        if self.size == 1:
            own.copy_(rows[0])
        else:
            self._ask("reduce-scatter", _scatter_one, own.view(-1), rows.view(-1))

    def exchange(self, received: torch.Tensor, sent: torch.Tensor) -> None:
        """Write to row i of `received` what rank i has in the row of this rank. Shapes: as sent."""
        if self.size == 1:
            received.copy_(sent)
        else:
            self._ask("all-to-all", dist.all_to_all_single, received, sent)

    def pass_on(self, sent: torch.Tensor, received: torch.Tensor) -> Callable[[], None]:
        """Begin to send a tensor to the next rank of the ring; return what waits for the last's."""
        peers = [(self.rank + step) % self.size for step in (1, -1)]
        to, source = (dist.get_global_rank(self.group, peer) for peer in peers)
        calls = [
            dist.P2POp(dist.isend, sent, to, self.group),
            dist.P2POp(dist.irecv, received, source, self.group),
        ]
        works = self._ask("ring", dist.batch_isend_irecv, calls, grouped=False)
        return lambda: [self._ask("ring", work.wait, grouped=False) for work in works] and None

    def _ask(self, what: str, call: Callable, *tensors: Any, grouped: bool = True) -> Any:
        try:
            return call(*tensors, group=self.group) if grouped else call(*tensors)
        except RuntimeError as error:
            line = str(error).partition("\n")[0]
            reason = (line.partition("] ")[2] or line).partition(". ")[0]
            words = f"rank {self.rank} of {self.size} lost another rank in {what}: {reason}"
            raise LostRank(f"{words} (time-out {self.timeout_s:g} s)") from None
