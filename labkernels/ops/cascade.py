"""The verb `cascade_decode`: requests that share a prefix read its keys once."""

from dataclasses import replace
from typing import Any

import torch

from labkernels.kernels import checks as arguments
from labkernels.kernels.caches.paged import PagedKV
from labkernels.kernels.call import Attention, Plan, Step
from labkernels.kernels.decode.api import decode_step
from labkernels.kernels.memory import require_apart
from labkernels.kernels.merge_states.api import merge_states_step
from labkernels.kernels.prefill.api import prefill_step
from labkernels.policy import TENSOR_CORES

_FP32_OUT = replace(TENSOR_CORES, out="fp32")  # so that the output is rounded once, by the merge


def cascade_decode_step(
    q: torch.Tensor,
    prefix: PagedKV,
    cache: PagedKV,
    *,
    scale: float | None = None,
    out: torch.Tensor | None = None,
    lse2: torch.Tensor | None = None,
    target: str | None = None,
    checks: bool = False,
    batch_invariant: bool = False,
) -> Step[Attention]:
    """Prepare a cascade decode that can run many times; like `cascade_decode`.

    As for `decode_step`, lengths and pages may change between runs, and are not read.
    Raises: ValueError naming the argument, its value and what is allowed.

    >>> pages, table = torch.randn(2, 2, 16, 1, 64).half(), torch.tensor([[1]]).int()
    >>> prefix = PagedKV(*pages, table, torch.tensor([16]).int())
    >>> cache = PagedKV(*pages, 0 * table, torch.tensor([5]).int())
    >>> step = cascade_decode_step(torch.randn(1, 4, 64).half(), prefix, cache)
    >>> _ = cache.kv_len.fill_(6)  # one more key; the plan stays
    >>> step.run()
    >>> step.out.shape
    torch.Size([1, 4, 64])
    """
    for name, pages in (("prefix", prefix), ("cache", cache)):
        if not isinstance(pages, PagedKV):
            arguments.refuse_kind(name, pages, "PagedKV")
    if prefix.batch != 1:
        raise ValueError(f"prefix.batch = {prefix.batch}, allowed: 1, the prefix of all requests")
    arguments.require_tensor("q", q)
    if q.dim() == 3 and prefix.k.shape[2:] != cache.k.shape[2:]:
        words = f"{tuple(cache.k.shape[2:])}, the heads and channels of cache"
        raise ValueError(f"prefix.k.shape[2:] = {tuple(prefix.k.shape[2:])}, allowed: {words}")
    shared: dict[str, Any] = {"scale": scale, "target": target, "checks": checks}
    outs = q.new_empty((2, *q.shape), dtype=torch.float32)
    lse2s = q.new_empty((2, *q.shape[:-1]), dtype=torch.float32)
    keys = arguments.INVARIANT_KEYS_PER_SPLIT if batch_invariant else None
    both = {"policy": _FP32_OUT, "batch_invariant": batch_invariant, **shared}
    own = decode_step(q, cache, out=outs[1], lse2=lse2s[1], **both)
    ends = torch.tensor([0, len(q)], dtype=torch.int32, device=q.device)
    first = {"out": outs[0], "lse2": lse2s[0], "keys_per_split": keys, **both}
    of_prefix = prefill_step(q, prefix, ends, causal=False, q_lens=[len(q)], **first)
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    require_apart({"out": out, "lse2": lse2}, {"q": q, **prefix.tensors, **cache.tensors})
    merged = merge_states_step(outs, lse2s, out=out, lse2=lse2, target=target, checks=checks)
    steps = (of_prefix, own, merged)

    def run() -> None:
        for step in steps:
            step.run()

    plans = [plan for step in steps if (plan := step.plan)]
    return Step(run, merged.outputs, _of_all(plans))


def _of_all(plans: list[Plan]) -> Plan:
    """Return the decode's plan, which is the second one, with what all launches have together."""
    return replace(
        plans[1],
        kernel=" + ".join(plan.kernel for plan in plans),
        launches=sum(plan.launches for plan in plans),
        why="; ".join(plan.why for plan in plans),
        batch_invariant=all(plan.batch_invariant for plan in plans),
    )


def cascade_decode(
    q: torch.Tensor, prefix: PagedKV, cache: PagedKV, **options: Any
) -> Step[Attention]:
    """Compute attention of one query token per request over a shared prefix and its own keys.

    The prefix is read once for all requests, by a prefill kernel whose rows are the requests'
    query heads; a decode reads each request's own keys; a merge adds the two, in fp32.
    Shapes: q, out [batch, q_heads, head_dim]; lse2 [batch, q_heads] fp32; prefix of one request,
    cache of `batch`. options: scale, out, lse2, target, checks and batch_invariant, as in `decode`;
    without the last, the prefix is split as the number of requests asks for.
    Error: within the bounds of the two outputs in fp32 and of `merge_states`.
    Raises: ValueError naming the argument, its value and what is allowed; then nothing is written.

    >>> pages = torch.randn(2, 3, 16, 1, 64).half()
    >>> prefix = PagedKV(*pages, torch.tensor([[1]]).int(), torch.tensor([16]).int())
    >>> cache = PagedKV(*pages, torch.tensor([[0], [2]]).int(), torch.tensor([5, 9]).int())
    >>> q = torch.randn(2, 4, 64).half()
    >>> cascade_decode(q, prefix, cache).plan.kernel
    'prefill_mma + decode_mma_n8 + merge_states'
    """
    known = cascade_decode_step.__kwdefaults__ or {}
    for name in options.keys() - known.keys():
        words = f"cascade_decode() got an unexpected option {name!r}"
        raise TypeError(f"{words}; it has {', '.join(known)}")
    step = cascade_decode_step(arguments.resolved(q), prefix, cache, **options)
    for pages in (prefix, cache):
        pages.require_contents()
    step.run()
    return step
