"""The verbs `prefill` and `varlen_qkvpacked`: many query tokens per request, over any layout."""

from collections.abc import Sequence
from typing import TypedDict, Unpack

import torch

from labkernels.kernels import checks as arguments
from labkernels.kernels.caches.mask import require_bits, require_words
from labkernels.kernels.caches.page_guard import guarded
from labkernels.kernels.caches.paged import PagedKV
from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.kernels.call import (
    Asked,
    Attention,
    Step,
    VariantOptions,
    asked_of,
    in_graph,
    keep,
    kept,
    require_options,
)
from labkernels.kernels.kernel import MANY_ROWS
from labkernels.kernels.memory import require_apart
from labkernels.kernels.packed_gqa.call import (
    PackedCall,
    PackedOptions,
    SplitOptions,
    packed_call,
)
from labkernels.kernels.packed_gqa.schedule import Lengths


class MaskOption(TypedDict, total=False):
    """The option of attention whose queries see some of their keys.

    mask [bytes] uint8: a bit for each query and key of a request, as `pack_mask` packs them; where
    it is 0 the query does not see the key, even if causal and window let it. Keys that it hides are
    read, and must be finite.
    """

    mask: torch.Tensor | None


class PrefillStepOptions(SplitOptions, VariantOptions, MaskOption, total=False):
    """The options of a prefill, apart from the mask and the lengths."""


class PrefillOptions(PackedOptions, VariantOptions, MaskOption, total=False):
    """All options of the verb `prefill`."""


NAMES = ("q", "cu_seqlens_q")
DIMS = "[total, q_heads, head_dim]"


def prefill(
    q: torch.Tensor,
    kv: RaggedKV | PagedKV,
    cu_seqlens_q: torch.Tensor,
    **options: Unpack[PrefillOptions],
) -> Step[Attention]:
    """Compute the attention of many query tokens per request over the request's keys.

    Shapes: q [total, q_heads, head_dim], q_heads a multiple of the KV heads; cu_seqlens_q
    [batch + 1] int32, from 0 to total; out [total, q_heads, head_dim_v], lse2 [total, q_heads]
    fp32. A causal mask is aligned to the end: query i of n with L keys sees keys 0 to L - n + i.
    A query without keys, or without keys that a mask leaves, gives out = 0, lse2 = -inf.
    options: the fields of PrefillOptions; causal is False by default. On a GPU, lengths and
    pages are read when torch has seen one of them change (see `checks.once_per_content`); lengths
    given as q_lens and kv_lens are not read.
    Units: scale multiplies q k (default 1 / sqrt(head_dim)); lse2 is in base 2.
    Raises: ValueError naming the argument, its value and what is allowed; then nothing is written.

    >>> ends = torch.tensor([0, 3, 8], dtype=torch.int32)  # requests of 3 and 5 tokens
    >>> q, k, v = (torch.randn(8, heads, 64).half() for heads in (4, 2, 2))
    >>> step = prefill(q, RaggedKV(k, v, ends), ends, causal=True)
    >>> torch.equal(step.out[0, 0], v[0, 0])  # the first token sees itself alone
    True
    """
    if torch.compiler.is_compiling():
        if kv.layout == "paged":
            tensors = (q, *kv.tensors.values(), cu_seqlens_q)
            return in_graph("prefill_paged", Attention, *tensors, **options)
        return in_graph("prefill", Attention, q, kv.k, kv.v, cu_seqlens_q, kv.cu_seqlens, **options)
    if not options.keys() <= PrefillOptions.__annotations__.keys():
        require_options("prefill", options, PrefillOptions)
    if True in [getattr(x, "is_neg", bool)() for x in (q, cu_seqlens_q)]:
        q, cu_seqlens_q = arguments.resolved(q), arguments.resolved(cu_seqlens_q)
    step = prefill_step(q, kv, cu_seqlens_q, **options)
    if kv.layout == "paged":
        kv.require_contents(options.get("kv_lens"))
    step.run()
    return step


def varlen_qkvpacked(
    qkv: torch.Tensor, cu_seqlens: torch.Tensor, **options: Unpack[PrefillOptions]
) -> Step[Attention]:
    """Compute self-attention within each request, from Q, K and V side by side.

    Shapes: qkv [total, 3, heads, head_dim], cu_seqlens [batch + 1] int32. Options as `prefill`.
    Raises: ValueError naming the argument, its value and what is allowed; then nothing is written.

    >>> qkv = torch.randn(8, 3, 2, 64).half()
    >>> varlen_qkvpacked(qkv, torch.tensor([0, 3, 8], dtype=torch.int32)).out.shape
    torch.Size([8, 2, 64])
    """
    require_options("varlen_qkvpacked", options, PrefillOptions)
    arguments.require_tensor("qkv", qkv)
    if qkv.dim() != 4 or qkv.shape[1] != 3:
        raise ValueError(f"qkv.shape = {tuple(qkv.shape)}, allowed: [total, 3, heads, head_dim]")
    q, k, v = qkv.unbind(1)
    return prefill(q, RaggedKV(k, v, cu_seqlens), cu_seqlens, **options)


def prefill_step(
    q: torch.Tensor,
    kv: RaggedKV | PagedKV,
    cu_seqlens_q: torch.Tensor,
    *,
    causal: bool = False,
    out: torch.Tensor | None = None,
    lse2: torch.Tensor | None = None,
    q_lens: Sequence[int] | None = None,
    kv_lens: Sequence[int] | None = None,
    **options: Unpack[PrefillStepOptions],
) -> Step[Attention]:
    """Prepare a prefill that can run many times; like `prefill`, but page numbers are not read.

    The lengths are fixed here and must not change. Page numbers may change between runs; the caller
    must keep them in range (`PagedKV.check_contents`).
    Raises: ValueError naming the argument, its value and what is allowed.

    >>> ends = torch.tensor([0, 8], dtype=torch.int32)
    >>> q, k, v = torch.randn(3, 8, 2, 64).half()
    >>> step = prefill_step(q, RaggedKV(k, v, ends), ends)
    >>> step.run()
    >>> step.out.shape
    torch.Size([8, 2, 64])
    """
    if not isinstance(kv, (RaggedKV, PagedKV)):
        arguments.refuse_kind("kv", kv, "RaggedKV, PagedKV")
    asked, of_variant = asked_of("prefill_step", q, options, PrefillStepOptions, causal=causal)
    if "mask" in of_variant:
        require_bits(of_variant["mask"], q.device)
    target = asked.target
    found = ("prefill", target, *arguments.facts(q, cu_seqlens_q, names=NAMES), kv.facts)
    tensors = arguments.once_per_facts(found, lambda: _check_tensors(q, kv, cu_seqlens_q, target))
    arguments.require_no_gradient("prefill", q=q, k=kv.k, v=kv.v)
    arguments.require_place("q", q)
    if out is not None or lse2 is not None:
        read = {"q": q, "cu_seqlens_q": cu_seqlens_q, **kv.tensors, **of_variant}
        require_apart({"out": out, "lse2": lse2}, read)
    q_lengths = arguments.read_lengths("cu_seqlens_q", cu_seqlens_q, q.shape[0], q_lens)
    lengths = Lengths(q_lengths, kv.read_lengths(kv_lens))
    facts = (tensors, lengths.q.tobytes(), lengths.kv.tobytes())
    call = kept(facts, asked) or keep(facts, asked, _checked(q, kv, lengths, asked))
    if "mask" in of_variant:
        require_words(of_variant["mask"], lengths.q, lengths.kv)
    call = call.on(
        q=q,
        kv=kv,
        cu_seqlens_q=cu_seqlens_q,
        out=arguments.output("out", out, call.out),
        lse2=arguments.output("lse2", lse2, call.lse2),
        variant_tensors=of_variant,
    )
    step = call.choice.kernel.prepare(call)
    return guarded(step, call, kv, lengths.kv) if asked.checks else step


def _checked(q: torch.Tensor, kv: RaggedKV | PagedKV, lengths: Lengths, asked: Asked) -> PackedCall:
    """Return the checked call of these arguments without its tensors: only their facts count."""
    k, v = kv.k, kv.v
    return packed_call(
        PackedCall,
        "prefill",
        q,
        lengths,
        asked,
        kv_heads=kv.kv_heads,
        most_tokens=MANY_ROWS,
        invariant_split={"splits": 1},
        head_dim=k.shape[-1],
        head_dim_v=v.shape[-1],
        layout=kv.layout,
        page_size=0 if kv.layout == "ragged" else k.shape[1],
        positive_strides=arguments.has_positive_strides(q, k, v),
    )


def _check_tensors(
    q: torch.Tensor, kv: RaggedKV | PagedKV, cu_seqlens_q: torch.Tensor, target: str | None
) -> None:
    arguments.require_query(q, kv.k, kv.k.shape[-1], kv.k.shape[-2], DIMS)
    arguments.target_gpu(q.device, target)
    arguments.require_cu_seqlens("cu_seqlens_q", cu_seqlens_q, kv.k.device, kv.batch, "kv")
