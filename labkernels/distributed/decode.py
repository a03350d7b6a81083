"""The verb `context_parallel_decode`: each rank attends to its pages, and the parts are merged."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Unpack

import torch

from labkernels.distributed.ranks import Ranks
from labkernels.distributed.shards import shard
from labkernels.kernels import checks as arguments
from labkernels.kernels.caches.paged import PagedKV, QuantizedKV
from labkernels.kernels.call import Attention, Options, Plan, Step, require_options
from labkernels.kernels.decode.api import decode_step
from labkernels.kernels.kernel import Kernel
from labkernels.kernels.merge_states.api import merge_states_step
from labkernels.kernels.registry import kernels_of
from labkernels.policy import TENSOR_CORES
from labkernels.units import COPY_BYTES, require_choice, require_int

MERGES, CARRIES = ("gather", "heads", "scatter"), ("fp32", "input")


class PartOptions(Options, total=False):
    """The options of attention over parts: none needs a key's place, and none counts only once."""

    scale: float | None
    soft_cap: float | None


class InParts(NamedTuple):
    """A merged output, and its parts: outs [parts, batch, q_heads, head_dim] and lse2s."""

    out: torch.Tensor
    lse2: torch.Tensor
    outs: torch.Tensor
    lse2s: torch.Tensor


@dataclass(frozen=True)
class Message:
    """A part's out [batch, q_heads, head_dim] and lse2 [batch, q_heads], side by side in bytes."""

    batch: int
    q_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def n_bytes(self) -> int:
        """Bytes of the message, which ends where a copy may start."""
        of_row = self.head_dim * self.dtype.itemsize + torch.float32.itemsize
        return max(1, -(-self.batch * self.q_heads * of_row // COPY_BYTES)) * COPY_BYTES

    def room(self, n: int, device: torch.device) -> torch.Tensor:
        """Return memory for n messages: [n, n_bytes]."""
        return torch.zeros(n, self.n_bytes, dtype=torch.uint8, device=device)

    def views(self, room: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return outs [n, batch, q_heads, head_dim] and lse2s [n, batch, q_heads] in the room."""
        rows = (self.batch, self.q_heads)
        n_rows = self.batch * self.q_heads
        end = n_rows * self.head_dim * self.dtype.itemsize
        outs, lse2s = room[:, :end].view(self.dtype), room[:, end:].view(torch.float32)
        return outs.unflatten(1, (*rows, self.head_dim)), lse2s[:, :n_rows].unflatten(1, rows)


def context_parallel_decode(
    q: torch.Tensor,
    cache: PagedKV | QuantizedKV,
    ranks: Ranks,
    *,
    merge: str = "gather",
    carry: str = "fp32",
    **options: Unpack[PartOptions],
) -> Step[Attention]:
    """Compute a decode whose keys are spread over ranks; each rank calls it with its own pages.

    gather: every rank gets all parts and merges them in the order of the ranks. heads: a rank gets
    the parts of its query heads and merges them in the same order, to the same bits. scatter:
    weighted parts are summed on the way, in an order that the library chooses. carry: the format in
    which parts travel, "fp32", or "input" for that of q. The step may run again, on all ranks
    equally often, and be captured in a CUDA graph; lengths and pages may change.
    Shapes: q [batch, q_heads, head_dim], equal on all ranks; out like q for gather, else of this
    rank's q_heads / ranks heads; lse2 without channels. A request may have no keys on a rank.
    Error: numerics.error.merging, beside that of a decode with an output in the carry's format.
    Raises: on every rank the same ValueError, naming the rank, the argument, its value and what is
    allowed; LostRank, in one line, if a rank ends or does not answer.

    >>> pages, table = torch.randn(2, 2, 16, 1, 64).half(), torch.tensor([[0, 1]]).int()
    >>> cache = PagedKV(*pages, table, torch.tensor([20]).int())
    >>> step = context_parallel_decode(torch.randn(1, 4, 64).half(), cache, Ranks())
    >>> step.out.shape, step.plan.kernel
    (torch.Size([1, 4, 64]), 'decode_mma_n8 + merge_states')
    """

    def make() -> tuple[tuple, dict[str, object]]:
        require_choice("merge", merge, MERGES)
        message = _message(q, carry)
        how = _options("context_parallel_decode", carry, options)
        if merge != "gather" and message.q_heads % ranks.size:
            words = f"a multiple of {ranks.size} ranks with merge = {merge!r}"
            raise ValueError(f"q_heads = {message.q_heads}, allowed: {words}")
        room = message.room(1, q.device)
        out, lse2 = (view[0] for view in message.views(room))
        own = decode_step(q, cache, out=out, lse2=lse2, **how)
        cache.require_contents()
        facts = {"merge": merge, "carry": carry, "q.dtype": q.dtype, "q.shape": tuple(q.shape)}
        facts |= {"kv_heads": cache.kv_heads, "page_table.shape[1]": cache.page_table.shape[1]}
        facts |= {"page_size": cache.page_size, "plan.policy": own.plan.policy, **options}
        joined = _scattered if merge == "scatter" else _in_order
        return (own, *joined(ranks, message, room, q.dtype, merge)), facts

    own, join, outputs, plan = ranks.agree(make)

    def run() -> None:
        own.run()
        join()

    run()
    return Step(run, outputs, _with_merge(own.plan, plan))


def decode_in_parts(
    q: torch.Tensor,
    cache: PagedKV | QuantizedKV,
    parts: int,
    *,
    by: str = "contiguous",
    carry: str = "fp32",
    **options: Unpack[PartOptions],
) -> Step[InParts]:
    """Compute in one process, in one launch and a merge, the bits of `context_parallel_decode`.

    The parts are requests of one decode: bits do not depend on what runs beside a request, as its
    splits have a fixed number of keys. `merge_states` then adds the parts in the order of the ranks
    that would hold them. by, carry: as for `shard` and `context_parallel_decode`.
    Raises: ValueError naming the argument, its value and what is allowed.

    >>> pages, table = torch.randn(2, 4, 16, 1, 64).half(), torch.tensor([[0, 1, 2, 3]]).int()
    >>> cache = PagedKV(*pages, table, torch.tensor([60]).int())
    >>> step = decode_in_parts(torch.randn(1, 4, 64).half(), cache, 2)
    >>> step.out.shape, step.plan.launches
    (torch.Size([1, 4, 64]), 2)
    """
    message, how = _message(q, carry), _options("decode_in_parts", carry, options)
    require_int("parts", parts, minimum=1)
    if len(q) != len(cache.kv_len):
        words = f"{len(cache.kv_len)}, the requests of the cache"
        raise ValueError(f"len(q) = {len(q)}, allowed: {words}")
    shards = [shard(cache, rank, parts, by) for rank in range(parts)]
    tables, lengths = (torch.cat([getattr(x, n) for x in shards]) for n in ("page_table", "kv_len"))
    outs = torch.empty(parts * len(q), *q.shape[1:], dtype=message.dtype, device=q.device)
    beside = replace(cache, page_table=tables, kv_len=lengths)
    own = decode_step(q.repeat(parts, 1, 1), beside, out=outs, **how)
    outs, lse2s = (x.unflatten(0, (parts, len(q))) for x in own.outputs())
    merged = merge_states_step(outs, lse2s, out=torch.empty_like(q))

    def run() -> None:
        own.run()
        merged.run()

    cache.require_contents()
    run()
    plan = _with_merge(own.plan, merged.plan)
    return Step(run, lambda: InParts(*merged.outputs(), outs, lse2s), plan)


def _message(q: torch.Tensor, carry: str) -> Message:
    require_choice("carry", carry, CARRIES)
    arguments.require_tensor("q", q)
    if q.dim() != 3:
        raise ValueError(f"q.shape = {tuple(q.shape)}, allowed: [batch, q_heads, head_dim]")
    return Message(*q.shape, torch.float32 if carry == "fp32" else q.dtype)


def _options(verb: str, carry: str, options: PartOptions) -> dict[str, Any]:
    """Return the options of a part, whose bits do not depend on what runs beside."""
    require_options(verb, options, PartOptions)
    return {"batch_invariant": True, **options, **carried("decode", carry, options)}


def carried(operation: str, carry: str, options: Options) -> dict[str, Any]:
    """Return the policy of a kernel whose output has the format of the carry, if it must be told.

    The policy is the one asked for, or the first of the named kernel, with another output.
    """
    kernel = options.get("kernel")
    kernel = kernels_of(operation).get(kernel) if isinstance(kernel, str) else kernel
    base = kernel.policies[0] if isinstance(kernel, Kernel) else TENSOR_CORES
    policy = replace(options.get("policy") or base, out="fp32")
    return {"policy": policy} if carry == "fp32" else {}


Joined = tuple[Callable[[], None], Callable[[], Attention], Plan | None]


def _in_order(
    ranks: Ranks, message: Message, room: torch.Tensor, dtype: torch.dtype, merge: str
) -> Joined:
    """Return the merge of all parts, or of those of this rank's heads, in the order of ranks."""
    sent, kind = room, "all-gather"
    if merge == "heads":
        own = [view[0] for view in message.views(room)]
        message, kind = replace(message, q_heads=message.q_heads // ranks.size), "all-to-all"
        sent = message.room(ranks.size, room.device)
    received = message.room(ranks.size, room.device)
    outs, lse2s = message.views(received)
    out = torch.empty(outs.shape[1:], dtype=dtype, device=room.device)
    merged = merge_states_step(outs, lse2s, out=out)

    def run() -> None:
        if merge == "heads":
            for slot, view in zip(message.views(sent), own, strict=True):
                slot.copy_(view.unflatten(1, (ranks.size, -1)).transpose(0, 1))
        ranks.exchange(kind, received, sent)
        merged.run()

    return run, merged.outputs, merged.plan


def _scattered(
    ranks: Ranks, message: Message, room: torch.Tensor, dtype: torch.dtype, merge: str
) -> Joined:
    """Return the sum, by the library, of parts that are multiplied by their weights."""
    out, lse2 = (view[0] for view in message.views(room))
    lse2s = torch.empty(ranks.size, *lse2.shape, device=room.device)
    rows = out.unflatten(1, (ranks.size, -1)).transpose(0, 1).contiguous()
    total, heads = torch.empty_like(rows[0]), rows.shape[2]
    mine = slice(ranks.rank * heads, (ranks.rank + 1) * heads)
    result = Attention(total.to(dtype, copy=True), torch.empty_like(lse2[:, mine]))
    lowest = torch.finfo(torch.float32).min  # in place of -inf, whose difference to itself is NaN

    def run() -> None:
        ranks.exchange("all-gather", lse2s, lse2)
        top = lse2s.amax(0).clamp(min=lowest)
        whole = top + torch.exp2(lse2s - top).sum(0).log2()
        weighed = torch.exp2(lse2 - whole.clamp(min=lowest))[..., None] * out
        rows.copy_(weighed.unflatten(1, (ranks.size, heads)).transpose(0, 1))
        ranks.exchange("reduce-scatter", total, rows)
        result.out.copy_(total)
        result.lse2.copy_(whole[:, mine])

    return run, lambda: result, None


def _with_merge(own: Plan, merged: Plan | None) -> Plan:
    name, launches = (merged.kernel, merged.launches) if merged else ("reduce-scatter", 0)
    return replace(own, kernel=f"{own.kernel} + {name}", launches=own.launches + launches)
