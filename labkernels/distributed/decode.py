"""The verb `context_parallel_decode`: each rank attends to its pages, and the parts are merged."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Unpack

import torch

from labkernels.distributed.ranks import Ranks
from labkernels.distributed.shards import shard
from labkernels.kernels import checks as arguments
from labkernels.kernels.caches.paged import PagedKV
from labkernels.kernels.call import Attention, Options, Plan, Step, require_options
from labkernels.kernels.decode.api import decode_step
from labkernels.kernels.kernel import Kernel
from labkernels.kernels.merge_states.api import merge_states_step
from labkernels.kernels.registry import kernels_of
from labkernels.policy import TENSOR_CORES, NumericPolicy
from labkernels.units import COPY_BYTES, require_choice

MERGES = ("gather", "scatter", "heads")
CARRIES = ("fp32", "input")


class PartOptions(Options, total=False):
    """The options of a decode whose keys lie on several ranks.

    keys_per_split: of each rank's own decode, by default INVARIANT_KEYS_PER_SPLIT, so that bits do
    not depend on how many requests run together. Windows and slopes are no options, because a part
    does not know how far its keys are from the query; nor are sinks, which count once.
    """

    scale: float | None
    soft_cap: float | None
    keys_per_split: int | None


class InParts(NamedTuple):
    """A merged output, and its parts: outs [parts, batch, q_heads, head_dim] and lse2s."""

    out: torch.Tensor
    lse2: torch.Tensor
    outs: torch.Tensor
    lse2s: torch.Tensor


@dataclass(frozen=True)
class Parts:
    """Outputs and log-sum-exps of parts, side by side in bytes, so that one message carries both.

    Shapes: of a part, out [batch, q_heads, head_dim] and lse2 [batch, q_heads] fp32.
    """

    batch: int
    q_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def out_bytes(self) -> int:
        """Bytes of a part's output."""
        return self.batch * self.q_heads * self.head_dim * self.dtype.itemsize

    @property
    def n_bytes(self) -> int:
        """Bytes of a part's message, which ends where a copy may start."""
        lse2_bytes = self.batch * self.q_heads * torch.float32.itemsize
        return -(-(self.out_bytes + lse2_bytes) // COPY_BYTES) * COPY_BYTES

    def room(self, n: int, device: torch.device) -> torch.Tensor:
        """Return memory for n parts: [n, n_bytes]."""
        return torch.zeros(n, self.n_bytes, dtype=torch.uint8, device=device)

    def views(self, room: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return outs [n, batch, q_heads, head_dim] and lse2s [n, batch, q_heads] in the room."""
        rows = (self.batch, self.q_heads)
        outs, rest = room[:, : self.out_bytes], room[:, self.out_bytes :].view(torch.float32)
        lse2s = rest[:, : self.batch * self.q_heads]
        return outs.view(self.dtype).unflatten(1, (*rows, self.head_dim)), lse2s.unflatten(1, rows)


def context_parallel_decode(
    q: torch.Tensor,
    cache: PagedKV,
    ranks: Ranks,
    *,
    merge: str = "gather",
    carry: str = "fp32",
    **options: Unpack[PartOptions],
) -> Step[Attention]:
    """Compute a decode whose keys are spread over ranks; each rank calls it with its own pages.

    gather: every rank gets all parts and merges them in the order of the ranks. heads: a rank gets
    the parts of its query heads (an all-to-all), and merges them in the same order, to the same
    bits. scatter: parts are multiplied by their weights and summed by a reduce-scatter, in an order
    that the library chooses. carry: the format in which parts travel, "fp32", or "input" for that
    of q.
    Shapes: q [batch, q_heads, head_dim], equal on all ranks; out like q for gather, else
    [batch, q_heads / ranks, head_dim], the heads of this rank; lse2 without channels. A request may
    have no keys on a rank. `shard` gives a rank's part of a cache.
    Error: of one rank's decode with an output in the format of the carry, and of the merge:
    numerics.error.merging.
    Raises: the same ValueError on every rank, naming the rank, the argument, its value and what is
    allowed; LostRank, in one line, if a rank ends or does not answer.

    >>> pages, table = torch.randn(2, 2, 16, 1, 64).half(), torch.tensor([[0, 1]]).int()
    >>> cache = PagedKV(*pages, table, torch.tensor([20]).int())
    >>> step = context_parallel_decode(torch.randn(1, 4, 64).half(), cache, Ranks())
    >>> step.out.shape, step.plan.kernel
    (torch.Size([1, 4, 64]), 'decode_mma_n8 + merge_states')
    """
    step = context_parallel_decode_step(q, cache, ranks, merge=merge, carry=carry, **options)
    ranks.agree(lambda: (cache.require_contents(), {}))
    step.run()
    return step


def context_parallel_decode_step(
    q: torch.Tensor,
    cache: PagedKV,
    ranks: Ranks,
    *,
    merge: str = "gather",
    carry: str = "fp32",
    **options: Unpack[PartOptions],
) -> Step[Attention]:
    """Prepare a context-parallel decode that can run many times; like `context_parallel_decode`.

    Arguments are compared once, here. All ranks must run the step equally often.
    Raises: ValueError as context_parallel_decode.

    >>> pages, table = torch.randn(2, 1, 16, 1, 64).half(), torch.tensor([[0]]).int()
    >>> cache = PagedKV(*pages, table, torch.tensor([5]).int())
    >>> step = context_parallel_decode_step(torch.randn(1, 4, 64).half(), cache, Ranks())
    >>> _ = cache.kv_len.fill_(6)  # one more key; the plan stays
    >>> step.run()
    >>> step.out.shape
    torch.Size([1, 4, 64])
    """

    def make() -> tuple[tuple, dict[str, object]]:
        require_choice("merge", merge, MERGES)
        require_options("context_parallel_decode", options, PartOptions)
        parts = _parts(q, carry)
        if merge != "gather" and parts.q_heads % ranks.size:
            words = f"a multiple of {ranks.size} ranks with merge = {merge!r}"
            raise ValueError(f"q_heads = {parts.q_heads}, allowed: {words}")
        room = parts.room(1, q.device)
        out, lse2 = (view[0] for view in parts.views(room))
        own = decode_step(q, cache, out=out, lse2=lse2, **_options(carry, options))
        joined = _JOINED[merge](ranks, parts, room, q.dtype, options)
        facts = {"merge": merge, "carry": carry, "q.dtype": q.dtype, "q.shape": tuple(q.shape)}
        facts |= {"kv_heads": cache.kv_heads, "page_table.shape[1]": cache.page_table.shape[1]}
        facts |= {"page_size": cache.page_size, "policy": own.plan.policy, "tile": own.plan.tile}
        return (own, *joined), facts | {name: options[name] for name in sorted(options)}

    own, run_joined, outputs, plan = ranks.agree(make)

    def run() -> None:
        own.run()
        run_joined()

    return Step(run, outputs, _with_merge(own.plan, plan))


def decode_in_parts(
    q: torch.Tensor,
    cache: PagedKV,
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
    require_options("decode_in_parts", options, PartOptions)
    of = _parts(q, carry)
    shards = [shard(cache, rank, parts, by) for rank in range(parts)]
    tables, lengths = (torch.cat([getattr(x, n) for x in shards]) for n in ("page_table", "kv_len"))
    beside = PagedKV(cache.k, cache.v, tables, lengths)
    outs = torch.empty(parts * of.batch, of.q_heads, of.head_dim, dtype=of.dtype, device=q.device)
    own = decode_step(q.repeat(parts, 1, 1), beside, out=outs, **_options(carry, options))
    outs, lse2s = (x.unflatten(0, (parts, of.batch)) for x in own.outputs())
    merged = _merged(outs, lse2s, q.dtype, options)

    def run() -> None:
        own.run()
        merged.run()

    cache.require_contents()
    run()
    plan = _with_merge(own.plan, merged.plan)
    return Step(run, lambda: InParts(*merged.outputs(), outs, lse2s), plan)


def _parts(q: torch.Tensor, carry: str) -> Parts:
    """Return the sizes of a part of the attention of q."""
    require_choice("carry", carry, CARRIES)
    arguments.require_tensor("q", q)
    if q.dim() != 3:
        raise ValueError(f"q.shape = {tuple(q.shape)}, allowed: [batch, q_heads, head_dim]")
    return Parts(*q.shape, torch.float32 if carry == "fp32" else q.dtype)


def _options(carry: str, options: PartOptions) -> dict[str, Any]:
    """Return the options of a part's decode, whose output has the format of the carry."""
    given = {"keys_per_split": arguments.INVARIANT_KEYS_PER_SPLIT, "batch_invariant": True}
    given |= {name: value for name, value in options.items() if value is not None}
    if carry == "fp32":
        given["policy"] = replace(policy_of("decode", options), out="fp32")
    return given


def policy_of(operation: str, options: Options) -> NumericPolicy:
    """Return the policy that options ask for, or the first one of the named kernel."""
    kernel = options.get("kernel")
    if isinstance(kernel, str):
        kernel = kernels_of(operation).get(kernel)
    base = kernel.policies[0] if isinstance(kernel, Kernel) else TENSOR_CORES
    return options.get("policy") or base


def _merged(
    outs: torch.Tensor, lse2s: torch.Tensor, dtype: torch.dtype, options: PartOptions
) -> Step[Attention]:
    out = torch.empty(outs.shape[1:], dtype=dtype, device=outs.device)
    how = {name: options[name] for name in ("target", "checks") if name in options}
    return merge_states_step(outs, lse2s, out=out, **how)


Joined = tuple[Callable[[], None], Callable[[], Attention], Plan | None]


def _gathered(
    ranks: Ranks, parts: Parts, room: torch.Tensor, dtype: torch.dtype, options: PartOptions
) -> Joined:
    """Return the merge of all parts on every rank."""
    rooms = parts.room(ranks.size, room.device)
    merged = _merged(*parts.views(rooms), dtype, options)

    def run() -> None:
        ranks.gather(rooms, room[0])
        merged.run()

    return run, merged.outputs, merged.plan


def _by_heads(
    ranks: Ranks, parts: Parts, room: torch.Tensor, dtype: torch.dtype, options: PartOptions
) -> Joined:
    """Return the merge of the parts of this rank's heads."""
    of_heads = replace(parts, q_heads=parts.q_heads // ranks.size)
    sent, received = (of_heads.room(ranks.size, room.device) for _ in range(2))
    own = [view[0] for view in parts.views(room)]
    merged = _merged(*of_heads.views(received), dtype, options)

    def run() -> None:
        for slot, view in zip(of_heads.views(sent), own, strict=True):
            slot.copy_(view.unflatten(1, (ranks.size, -1)).transpose(0, 1))
        ranks.exchange(received, sent)
        merged.run()

    return run, merged.outputs, merged.plan


def _scattered(
    ranks: Ranks, parts: Parts, room: torch.Tensor, dtype: torch.dtype, options: PartOptions
) -> Joined:
    """Return the sum, by the library, of parts that are multiplied by their weights."""
    out, lse2 = (view[0] for view in parts.views(room))
    lse2s = torch.empty(ranks.size, *lse2.shape, device=room.device)
    rows = torch.empty(ranks.size, parts.batch, parts.q_heads // ranks.size, parts.head_dim)
    rows = rows.to(room.device, parts.dtype)
    total, heads = torch.empty_like(rows[0]), rows.shape[2]
    mine = slice(ranks.rank * heads, (ranks.rank + 1) * heads)
    result = Attention(total.to(dtype, copy=True), torch.empty_like(lse2[:, mine]))
    lowest = torch.finfo(torch.float32).min  # in place of -inf, whose difference to itself is NaN

    def run() -> None:
        ranks.gather(lse2s, lse2)
        top = lse2s.amax(0).clamp(min=lowest)
        whole = top + torch.exp2(lse2s - top).sum(0).log2()
        weighed = torch.exp2(lse2 - whole.clamp(min=lowest))[..., None] * out
        rows.copy_(weighed.unflatten(1, (ranks.size, heads)).transpose(0, 1))
        ranks.sum_of_rows(total, rows)
        result.out.copy_(total)
        result.lse2.copy_(whole[:, mine])

    return run, lambda: result, None


_JOINED = {"gather": _gathered, "heads": _by_heads, "scatter": _scattered}


def _with_merge(own: Plan, merged: Plan | None) -> Plan:
    """Return the plan of a rank's decode, with what the merge adds."""
    if merged is None:
        return replace(own, kernel=f"{own.kernel} + reduce-scatter")
    kernel = f"{own.kernel} + {merged.kernel}"
    return replace(own, kernel=kernel, launches=own.launches + merged.launches)
