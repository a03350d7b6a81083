"""FlashAttention-3's functions on the lab's kernels: names, order and defaults as in its source.

Conventions are those of `compat.flash_attn`. Codes in e4m3 have descales [batch, kv_heads] fp32, 1
by default, and an output in bf16. num_splits, pack_gqa, sm_margin and scheduler_metadata choose how
the original works, and have no effect here. A cache of 8 bits is in pages; q in e4m3 becomes bf16.
"""

import torch

from labkernels.compat import caches, flash_attn
from labkernels.compat.arguments import Fixed, keeps_fixed, refusal, require_dims, variant_options
from labkernels.compat.dense import DIMS, equal_ends
from labkernels.kernels.checks import KV_DTYPES
from labkernels.kernels.decode.api import decode
from labkernels.kernels.prefill.fp8 import CODES, RaggedCodes, prefill_fp8


@keeps_fixed
def flash_attn_func(
    q, k, v, softmax_scale=None, causal=False, qv: Fixed = None, q_descale=None, k_descale=None,
    v_descale=None, window_size=(-1, -1), attention_chunk: Fixed = 0, softcap=0.0, num_splits=1,
    pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False,
):  # fmt: skip
    """Compute attention of requests of equal length, in 16 bits or of codes in e4m3.

    With return_attn_probs it returns out and softmax_lse.
    Raises: ValueError naming the argument, its value and what is allowed.

    >>> q, k, v = torch.randn(3, 2, 24, 4, 128).to(torch.float8_e4m3fn)
    >>> flash_attn_func(q, k, v, causal=True, v_descale=torch.full((2, 4), 0.5)).dtype
    torch.bfloat16
    """
    descales = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    if not _are_codes(q, descales, window_size, softcap):
        how = (0.0, softmax_scale, causal, window_size, softcap, None, deterministic, True)
        out, lse, _ = flash_attn.flash_attn_func(q, k, v, *how)
        return (out, lse) if return_attn_probs else out
    require_dims(q=(q, DIMS), k=(k, DIMS), v=(v, DIMS))
    kv = RaggedCodes(k.flatten(0, 1), v.flatten(0, 1), equal_ends(k))
    known = {"q_lens": (q.shape[1],) * len(q), "kv_lens": (k.shape[1],) * len(k)}
    how = {"causal": causal, "scale": softmax_scale, **descales, **known}
    step = prefill_fp8(q.flatten(0, 1), kv, equal_ends(q), **how)
    return flash_attn.outputs(step, q.shape[:2], return_attn_probs)


@keeps_fixed
def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q: Fixed = None,
    seqused_k: Fixed = None, softmax_scale=None, causal=False, qv: Fixed = None, q_descale=None,
    k_descale=None, v_descale=None, window_size=(-1, -1), attention_chunk: Fixed = 0, softcap=0.0,
    num_splits=1, pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False,
):  # fmt: skip
    """Compute attention of requests of any lengths, in 16 bits or of codes in e4m3.

    Shapes are those of `compat.flash_attn`. With return_attn_probs it returns out and softmax_lse.
    Raises: ValueError naming the argument, its value and what is allowed.

    >>> ends = torch.tensor([0, 3, 8]).int()  # requests of 3 and 5 tokens
    >>> q, k, v = torch.randn(3, 8, 4, 128).to(torch.float8_e4m3fn)
    >>> flash_attn_varlen_func(q, k, v, ends, ends, 5, 5, q_descale=torch.ones(2, 4)).shape
    torch.Size([8, 4, 128])
    """
    descales = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    if not _are_codes(q, descales, window_size, softcap):
        ends = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        how = (0.0, softmax_scale, causal, window_size, softcap, None, deterministic, True)
        out, lse, _ = flash_attn.flash_attn_varlen_func(q, k, v, *ends, *how)
        return (out, lse) if return_attn_probs else out
    kv = RaggedCodes(k, v, cu_seqlens_k)
    step = prefill_fp8(q, kv, cu_seqlens_q, causal=causal, scale=softmax_scale, **descales)
    return flash_attn.outputs(step, q.shape[:1], return_attn_probs)


@keeps_fixed
def flash_attn_with_kvcache(
    q, k_cache, v_cache, k=None, v=None, qv: Fixed = None, rotary_cos=None,
    rotary_sin=None, cache_seqlens=None, cache_batch_idx=None,
    cache_leftpad: Fixed = None, page_table=None, cu_seqlens_q: Fixed = None,
    cu_seqlens_k_new: Fixed = None, max_seqlen_q=None, rotary_seqlens: Fixed = None,
    q_descale=None, k_descale=None, v_descale=None, softmax_scale=None, causal=False,
    window_size=(-1, -1), attention_chunk: Fixed = 0, softcap=0.0, rotary_interleaved=True,
    scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0, return_softmax_lse=False,
):  # fmt: skip
    """Attend to a cache as `compat.flash_attn` does, or to a cache in e4m3 or e5m2 in pages.

    All requests share a cache's descales: [kv_heads] that expand() makes [batch, kv_heads].
    Raises: ValueError naming the argument, its value and what is allowed; then nothing is written.

    >>> pool, table = torch.zeros(3, 16, 2, 64).to(torch.float8_e4m3fn), torch.tensor([[2], [0]])
    >>> q, half = torch.ones(2, 1, 8, 64).half(), torch.tensor(0.5).expand(2, 2)
    >>> of = {"page_table": table.int(), "cache_seqlens": torch.tensor([5, 9]).int()}
    >>> flash_attn_with_kvcache(q, pool, pool, **of, k_descale=half, v_descale=half).shape
    torch.Size([2, 1, 8, 64])
    """
    descales = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    how = {"causal": causal, "softmax_scale": softmax_scale}
    how |= {"window_size": window_size, "softcap": softcap}
    if k_cache.dtype in KV_DTYPES:
        given = torch.is_tensor(page_table) and torch.is_tensor(cache_seqlens)
        given = given and all(x is None for x in (k, rotary_cos, cache_batch_idx))
        if not given or q.shape[1] != 1:
            need = "fp16, bf16, or with it page_table, cache_seqlens, one token per request and"
            need = f"{need} no k, rotary_cos, cache_batch_idx"
            raise refusal("k_cache.dtype", k_cache.dtype, need)
        if q.dtype == CODES:
            q = q.bfloat16()
        else:
            _refuse({"q_descale": q_descale}, f"None, with q in {q.dtype}")
        of_q, of_k, of_v = (_of_heads(name, x, len(q)) for name, x in descales.items())
        scales = {"k_scale": of_q * of_k, "v_scale": of_v}  # a score has the scales of Q and K
        cache = caches.in_pages(k_cache, v_cache, page_table, cache_seqlens, **scales)
        variant = variant_options(window_size[0], soft_cap=softcap)
        step = decode(q.flatten(0, 1), cache, scale=softmax_scale, **variant)
        return flash_attn.outputs(step, q.shape[:2], return_softmax_lse)
    _refuse(descales, f"None, with a cache in {k_cache.dtype}")
    return flash_attn.flash_attn_with_kvcache(
        q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx,
        block_table=page_table, rotary_interleaved=rotary_interleaved,
        return_softmax_lse=return_softmax_lse, **how,
    )  # fmt: skip


def _are_codes(q: torch.Tensor, descales: dict, window_size: tuple, softcap: float) -> bool:
    """Return whether q is in 8 bits; refuse the arguments of the other kind, in both cases."""
    if q.dtype != CODES:
        _refuse(descales, f"None, with q in {q.dtype}")
    elif tuple(window_size) != (-1, -1) or softcap > 0:
        raise refusal("window_size, softcap", (window_size, softcap), "none, with q in 8 bits")
    return q.dtype == CODES


def _refuse(descales: dict[str, torch.Tensor | None], allowed: str) -> None:
    for name, scale in descales.items():
        if scale is not None:
            raise refusal(name, scale, allowed)


def _of_heads(name: str, scale: torch.Tensor | None, batch: int) -> torch.Tensor | float:
    if scale is None:
        return 1.0
    if scale.dim() != 2 or (batch > 1 and scale.stride(0) != 0):
        raise refusal(name, scale, "[batch, kv_heads] that expand() made of [kv_heads]")
    return scale[0]
