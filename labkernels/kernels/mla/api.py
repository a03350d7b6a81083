"""The verb `mla_decode`: a few query tokens per request over a paged cache of latent rows."""

from collections.abc import Sequence
from typing import Unpack

import torch

from labkernels.cuda.workspace import stream_of
from labkernels.kept import Kept
from labkernels.kernels import checks as arguments
from labkernels.kernels.caches.latent import LATENT_DIM, ROPE_DIM, LatentKV
from labkernels.kernels.caches.page_guard import guarded
from labkernels.kernels.call import Asked, Attention, Step, in_graph, keep, kept, require_options
from labkernels.kernels.checks import (
    read_lengths,
    require_cu_seqlens,
    require_device,
    require_rows,
)
from labkernels.kernels.memory import require_apart
from labkernels.kernels.mla.call import MlaCall
from labkernels.kernels.packed_gqa.call import PackedOptions, SplitOptions, packed_call
from labkernels.kernels.packed_gqa.schedule import Lengths

NAMES = ("q_nope", "q_pe", "cu_seqlens_q")
MAX_HEADS = 128
MAX_TOKENS = 128  # tokens per request: the absorbed form is slow for a prefill


def mla_decode(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    cache: LatentKV,
    cu_seqlens_q: torch.Tensor | None = None,
    **options: Unpack[PackedOptions],
) -> Step[Attention]:
    """Compute the attention of a few query tokens per request over latent rows (absorbed MLA).

    Shapes: q_nope [total, heads, 512], q_pe [total, heads, 64], heads 1 to 128; cu_seqlens_q
    [batch + 1] int32, from 0 to total, up to 128 tokens per request (without it: one per request);
    out [total, heads, 512], lse2 [total, heads] fp32. K is ckv and kpe side by side, V is ckv. A
    causal mask is aligned to the end: query i of n with L keys sees keys 0 to L - n + i. A query
    without keys gives out = 0, lse2 = -inf.
    options: the fields of PackedOptions; causal is True by default. Lengths and pages on a GPU are
    read as by `prefill`.
    Units: scale multiplies q k (default 1 / sqrt(192), of the heads before absorption); lse2 is in
    base 2.
    Raises: ValueError naming the argument, its value and what is allowed; then nothing is written.

    >>> lens, table = torch.tensor([20, 7]).int(), torch.tensor([[2, 0], [1, 0]]).int()
    >>> ckv, kpe = torch.randn(3, 16, 576).half().split([512, 64], dim=-1)
    >>> q_nope, q_pe = torch.randn(2, 16, 576).half().split([512, 64], dim=-1)
    >>> mla_decode(q_nope, q_pe, LatentKV(ckv, kpe, table, lens)).out.shape
    torch.Size([2, 16, 512])
    """
    if torch.compiler.is_compiling():
        tensors = (q_nope, q_pe, *cache.tensors.values(), cu_seqlens_q)
        return in_graph("mla_decode", Attention, *tensors, **options)
    if not options.keys() <= PackedOptions.__annotations__.keys():
        require_options("mla_decode", options, PackedOptions)
    if True in [getattr(x, "is_neg", bool)() for x in (q_nope, q_pe, cu_seqlens_q)]:
        q_nope, q_pe, cu_seqlens_q = map(arguments.resolved, (q_nope, q_pe, cu_seqlens_q))
    step = mla_decode_step(q_nope, q_pe, cache, cu_seqlens_q, **options)
    cache.require_contents(options.get("kv_lens"))
    step.run()
    return step


def mla_decode_step(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    cache: LatentKV,
    cu_seqlens_q: torch.Tensor | None = None,
    *,
    causal: bool = True,
    out: torch.Tensor | None = None,
    lse2: torch.Tensor | None = None,
    q_lens: Sequence[int] | None = None,
    kv_lens: Sequence[int] | None = None,
    **options: Unpack[SplitOptions],
) -> Step[Attention]:
    """Prepare an MLA decode that can run many times; page numbers are not read.

    The lengths are fixed here and must not change. Page numbers may change between runs; the caller
    must keep them in range (`LatentKV.check_contents`).
    Raises: ValueError naming the argument, its value and what is allowed.

    >>> one = torch.zeros(1, 1).int()
    >>> ckv, kpe = torch.ones(1, 16, 576).half().split([512, 64], dim=-1)
    >>> step = mla_decode_step(ckv, kpe, LatentKV(ckv, kpe, one, one[0] + 9))
    >>> step.run()
    >>> step.out.unique()  # V is 1 at every key
    tensor([1.], dtype=torch.float16)
    """
    if not isinstance(q_nope, torch.Tensor):
        arguments.require_tensor("q_nope", q_nope)
    if not isinstance(cache, LatentKV):
        arguments.refuse_kind("cache", cache, "LatentKV")
    total, asked = q_nope.shape[0], Asked(causal, **options)
    if cu_seqlens_q is None:
        cu_seqlens_q = _one_each(total, q_nope.device)
        q_lens = (1,) * total if q_lens is None else q_lens
    of_q = arguments.facts(q_nope, q_pe, cu_seqlens_q, names=NAMES)
    found = ("mla", asked.target, *of_q, cache.facts)
    tensors = arguments.once_per_facts(
        found, lambda: _check_tensors(q_nope, q_pe, cache, cu_seqlens_q, asked.target)
    )
    queries = {"q_nope": q_nope, "q_pe": q_pe}
    arguments.require_no_gradient("mla_decode", **queries, ckv=cache.ckv, kpe=cache.kpe)
    arguments.require_place("q_nope", q_nope)
    arguments.require_place("q_pe", q_pe)
    if out is not None or lse2 is not None:
        require_apart({"out": out, "lse2": lse2}, queries | cache.tensors)
    q_lengths = read_lengths("cu_seqlens_q", cu_seqlens_q, total, q_lens)
    lengths = Lengths(q_lengths, cache.read_lengths(kv_lens))
    facts = (tensors, lengths.q.tobytes(), lengths.kv.tobytes())
    call = kept(facts, asked) or keep(facts, asked, _checked(q_nope, cache, lengths, asked))
    call = call.on(
        q=q_nope,
        q_pe=q_pe,
        kv=cache,
        cu_seqlens_q=cu_seqlens_q,
        out=arguments.output("out", out, call.out),
        lse2=arguments.output("lse2", lse2, call.lse2),
    )
    step = call.choice.kernel.prepare(call)
    return guarded(step, call, cache, lengths.kv) if asked.checks else step


def _checked(q_nope: torch.Tensor, cache: LatentKV, lengths: Lengths, asked: Asked) -> MlaCall:
    """Return the checked call of these arguments without its tensors: only their facts count."""
    if lengths.q.max() > MAX_TOKENS:
        raise ValueError(
            f"cu_seqlens_q: a request of {lengths.q.max()} tokens, allowed: 0 to {MAX_TOKENS}"
        )
    return packed_call(
        MlaCall,
        "mla",
        q_nope,
        lengths,
        asked,
        kv_heads=1,
        most_tokens=MAX_TOKENS,
        invariant_split={"keys_per_split": arguments.INVARIANT_KEYS_PER_SPLIT},
        default_scale=cache.default_scale,
        head_dim=LATENT_DIM + ROPE_DIM,
        head_dim_v=LATENT_DIM,
        layout="paged",
        page_size=cache.ckv.shape[1],
    )


_ONE_EACH = Kept(64)


def _one_each(total: int, device: torch.device) -> torch.Tensor:
    """Return the cumulative lengths of one token per request, kept for each stream."""
    stream = stream_of(device)
    made = _ONE_EACH.get(place := (total, device, stream))
    if made is None:
        made = torch.arange(total + 1, dtype=torch.int32, device=device)
        if stream is not None:
            _ONE_EACH[place] = made
    return made


def _check_tensors(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    cache: LatentKV,
    cu_seqlens_q: torch.Tensor,
    target: str | None,
) -> None:
    for name, q, channels in (("q_nope", q_nope, LATENT_DIM), ("q_pe", q_pe, ROPE_DIM)):
        if q.dim() != 3 or q.shape[2] != channels:
            raise ValueError(
                f"{name}.shape = {tuple(q.shape)}, allowed: [total, heads, {channels}]"
            )
        if q.dtype != cache.ckv.dtype:
            raise ValueError(f"{name}.dtype = {q.dtype}, allowed: {cache.ckv.dtype}, as ckv")
        require_device(name, q, cache.ckv.device, "ckv")
        require_rows(name, q)
    if q_pe.shape[:2] != q_nope.shape[:2]:
        allowed = f"{tuple(q_nope.shape[:2])}, as q_nope"
        raise ValueError(f"q_pe.shape[:2] = {tuple(q_pe.shape[:2])}, allowed: {allowed}")
    if not 1 <= q_nope.shape[1] <= MAX_HEADS:
        raise ValueError(f"q_nope.shape[1] = {q_nope.shape[1]} heads, allowed: 1 to {MAX_HEADS}")

    arguments.target_gpu(q_nope.device, target)
    device = cache.ckv.device
    require_cu_seqlens("cu_seqlens_q", cu_seqlens_q, device, cache.batch, "the cache")
