"""The ways to attention whose bits are compared: ours, and the libraries with their knobs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from labkernels.kernels.call import Plan
from labkernels.kernels.checks import INVARIANT_KEYS_PER_SPLIT
from labkernels.measure.peers import (
    flash_attention,
    flash_attention_2,
    flashinfer,
    peer,
    torch_sdpa,
)
from labkernels.measure.peers.peer import Tensors
from labkernels.planners import Batch, Cut
from labkernels.planners import flash_attention as flash_attention_cuts
from labkernels.planners import flashinfer as flashinfer_cuts
from labkernels.planners import torch_sdpa as torch_cuts
from labkernels.probing import our_cuts

KEYS_PER_SPLIT = INVARIANT_KEYS_PER_SPLIT  # of the ways with splits of one size


@dataclass(frozen=True, eq=False)
class Ran:
    """What a call gave. Shapes: out [B, M, Hq, D].

    plan: that of our kernels. plan_info: that of FlashInfer's wrappers.
    """

    out: Any
    version: str
    plan: Plan | None = None
    plan_info: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Way:
    """One way to attention.

    run(tensors) runs a batch, or raises if the library refuses. cut(batch, gpu): how the library
    cuts the batch; None for ours, whose plans tell. repeats_kv: whether K and V are repeated for
    the group, so that the library sees as many KV heads as query heads. paged: whether K and V lie
    in pages.
    """

    name: str
    library: str
    run: Callable[[Tensors], Ran]
    cut: Callable[..., Cut] | None = None
    missing: Callable[[], str | None] = lambda: None
    repeats_kv: bool = False
    paged: bool = False

    def batch(self, t: Tensors, dtype: str) -> Batch:
        """Return the shapes that the library sees."""
        n, q_len, heads, dim = t.q.shape
        kv_heads = heads if self.repeats_kv else t.k.shape[2]
        lengths = ((t.k.shape[1],) * n, heads, kv_heads, dim, (q_len,) * n)
        page_size = flashinfer.PAGE_SIZE if self.paged else None
        return Batch(*lengths, page_size=page_size, dtype=dtype, causal=t.causal)


def ways(operation: str) -> Iterator[Way]:
    """Yield the ways to a decode or to a prefill."""
    fixed = {"keys_per_split": KEYS_PER_SPLIT}
    if operation == "decode":
        yield _ours("labkernels", _decode)
        yield _ours("labkernels, keys_per_split", partial(_decode, **fixed))
        yield _ours("labkernels, batch_invariant", partial(_decode, batch_invariant=True))
        yield _ours("labkernels decode_fma", partial(_decode, kernel="decode_fma"))
    else:
        yield _ours("labkernels", _prefill)
        yield _ours("labkernels, batch_invariant", partial(_prefill, batch_invariant=True))
    yield from _flashinfer(operation)
    for name in ("flash", "efficient", "cudnn", "math"):
        run, cut = peer.backends()[f"torch_{name}"].run, getattr(torch_cuts, name)
        run = partial(_plain, run=run, version=torch_sdpa.version)
        yield Way(f"torch {name}", "torch", run, cut, torch_sdpa.missing, repeats_kv=True)
    yield from _flash_attention_2(operation)
    run = partial(_plain, run=_flash_attention_4, version=flash_attention.version)
    cut, missing = flash_attention_cuts.flash_attention_4, flash_attention.missing
    yield Way("FlashAttention-4", flash_attention.PACKAGE, run, cut, missing)


def _ours(name: str, run: Callable[[Tensors], Ran]) -> Way:
    return Way(name, "labkernels", run, paged=True)


def _decode(t: Tensors, **options) -> Ran:
    from labkernels import ops

    step = ops.decode(t.q[:, 0].contiguous(), flashinfer.pages(t), scale=t.scale, **options)
    return Ran(step.out[:, None], "", step.plan)


def _prefill(t: Tensors, **options) -> Ran:
    from labkernels import ops

    q, kv, ends = ragged(t)
    step = ops.prefill(q, kv, ends, causal=t.causal, scale=t.scale, **options)
    return Ran(step.out.view(t.q.shape), "", step.plan)


def ragged(t: Tensors) -> tuple:
    """Return q, a RaggedKV and the ends of q of a dense batch."""
    import torch

    from labkernels.kernels.caches.ragged import RaggedKV

    ends = torch.arange(len(t.q) + 1, dtype=torch.int32, device=t.q.device)
    q, k, v = (x.flatten(0, 1) for x in (t.q, t.k, t.v))
    return q, RaggedKV(k, v, ends * t.k.shape[1]), ends * t.q.shape[1]


def _flashinfer(operation: str) -> Iterator[Way]:
    """Yield FlashInfer's kernels with their knobs; fixed_split_size counts pages."""
    kept = {"fixed_split_size": KEYS_PER_SPLIT // flashinfer.PAGE_SIZE}
    off = {"disable_split_kv": True}
    how = {"library": flashinfer.LIBRARY, "missing": flashinfer.missing}
    if operation == "decode":
        how |= {"paged": True}
        cores = partial(_flashinfer_decode, tensor_cores=False, backend="auto")
        yield Way("FlashInfer CUDA cores", run=cores, cut=flashinfer_cuts.decode_cuda_cores, **how)
        run: Callable[..., Ran] = partial(_flashinfer_decode, tensor_cores=True, backend="fa2")
    else:
        run = partial(_flashinfer_prefill, backend="fa2")
        fa3 = partial(_flashinfer_prefill, backend="fa3")
        yield Way("FlashInfer fa3", run=fa3, cut=flashinfer_cuts.fa3, **how)
    knobs = {"": {}, ", fixed_split_size": kept, ", disable_split_kv": off}
    for name, knob in knobs.items():
        if operation == "decode" or knob is not kept:
            cut = partial(flashinfer_cuts.fa2, **knob)
            yield Way(f"FlashInfer fa2{name}", run=partial(run, **knob), cut=cut, **how)


def _flashinfer_decode(t: Tensors, **how) -> Ran:
    q, cache = t.q[:, 0].contiguous(), flashinfer.pages(t)
    step = flashinfer.decode_step(q, cache, scale=t.scale, **how)
    return Ran(step.out[:, None], step.version, plan_info=step.plan_info)


def _flashinfer_prefill(t: Tensors, **how) -> Ran:
    step = flashinfer.prefill_step(*ragged(t), causal=t.causal, scale=t.scale, **how)
    return Ran(step.out.view(t.q.shape), step.version, plan_info=step.plan_info)


def _flash_attention_2(operation: str) -> Iterator[Way]:
    """Yield FlashAttention-2's plain call, and of a decode the same as one split of a cache."""
    library, cut = flash_attention_2.PACKAGE, flash_attention_cuts.flash_attention_2
    knobs: dict[str, tuple[Callable, dict]] = {"": (flash_attention_2.attention, {})}
    if operation == "decode":
        one = {"num_splits": 1}
        knobs[", num_splits=1"] = partial(flash_attention_2.kvcache, **one), one
    for name, (call, knob) in knobs.items():
        run = partial(_plain, run=call, version=flash_attention_2.version)
        planned = partial(cut, **knob)
        yield Way(f"FlashAttention-2{name}", library, run, planned, flash_attention_2.missing)


def _plain(t: Tensors, *, run: Callable, version: Callable[[], str]) -> Ran:
    return Ran(run(t), version())


def _flash_attention_4(t: Tensors):
    return flash_attention.dense(t.q, t.k, t.v, causal=t.causal, scale=t.scale)


def agrees(plan_info: Sequence[int], batch: Batch, cut: Cut) -> bool | None:
    """Return whether a wrapper's plan is the cut; None for a plan that does not tell its splits.

    plan_info: a wrapper's `_plan_info` after plan(): 10 numbers on CUDA cores, 15 of fa2. Those of
    graphs count padding, and do not tell.
    Source: flashinfer-ai/flashinfer, include/flashinfer/attention/scheduler.cuh
    (DecodePlanInfo, PrefillPlanInfo), 0.7.2.post1 (beabf500).
    """
    numbers = tuple(plan_info)
    if len(numbers) not in (10, 15) or numbers[-2]:
        return None
    decode = len(numbers) == 10
    tiles = [1 if decode else -(-n * batch.group // cut.tile_q) for n in batch.queries]
    chunks = sum(n * len(splits) for n, splits in zip(tiles, cut.splits, strict=True))
    split = any(len(splits) > 1 for splits in cut.splits)
    tile_q = cut.tile_q if decode else numbers[3]
    return (numbers[0], tile_q, bool(numbers[-1])) == (chunks, cut.tile_q, split)


def cut_of(way: Way, ran: Ran, t: Tensors, dtype: str, gpu) -> Cut:
    """Return how a way cut a batch, by our plan or by the library's planner.

    Raises: NotKnown where neither tells.
    """
    if ran.plan is None:
        return way.cut(way.batch(t, dtype), gpu)
    heads = {"head_dim": t.q.shape[3], "group": t.q.shape[2] // t.k.shape[2]}
    return our_cuts.cut_of(ran.plan, (t.k.shape[1],) * len(t.q), dtype=dtype, **heads)
