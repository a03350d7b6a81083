"""flash-attn's functions on the lab's kernels: names, order and defaults as in flash-attn 2.8.

Every function takes and returns what its original does: tensors [batch, tokens, heads, head_dim],
or [total, heads, head_dim] with cumulative lengths; a causal mask is aligned to the bottom right;
a window of -1 has no end, a soft cap of 0 is none; softmax_lse is natural, [batch, heads, tokens]
or [heads, total], and -inf where a query sees no key. All but flash_attn_with_kvcache can be
differentiated, but slopes have no gradient.
A dropout, left padding, and slopes [batch, heads] are refused by their names.
max_seqlen_q and max_seqlen_k are not needed: the lab reads the lengths.
"""

from typing import Any

import torch

from labkernels.compat import caches
from labkernels.compat.arguments import (
    LN2,
    Fixed,
    keeps_fixed,
    refusal,
    require_dims,
    variant_options,
)
from labkernels.compat.dense import DIMS, dense_attention, equal_ends
from labkernels.kernels.caches.paged import PagedKV
from labkernels.kernels.call import Attention, Step
from labkernels.kernels.checks import resolved
from labkernels.kernels.decode.api import decode
from labkernels.kernels.prefill.api import prefill
from labkernels.ops.attention import attention
from labkernels.ops.with_kvcache import with_kvcache


@keeps_fixed
def flash_attn_func(
    q, k, v, dropout_p: Fixed = 0.0, softmax_scale=None, causal=False, window_size=(-1, -1),
    softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False,
):  # fmt: skip
    """Compute attention of requests of equal length.

    Shapes: q [batch, tokens, heads, head_dim], k, v [batch, keys, kv_heads, head_dim] -> out as q;
    with return_attn_probs, out, softmax_lse [batch, heads, tokens], and an empty tensor, since
    there is no dropout whose pattern it could show.
    Units: softmax_scale multiplies q k (default 1 / sqrt(head_dim)); softmax_lse is natural.
    Raises: ValueError naming the argument, its value and what is allowed.

    >>> q, k, v = torch.randn(3, 2, 24, 4, 64).half().requires_grad_()
    >>> out = flash_attn_func(q, k, v, causal=True)
    >>> (dv,) = torch.autograd.grad(out.sum(), v)
    >>> dv.shape
    torch.Size([2, 24, 4, 64])
    """
    options = _options(causal, window_size, softcap, alibi_slopes) | {"scale": softmax_scale}
    out, lse2 = dense_attention(q, k, v, deterministic=deterministic, **options)
    return (out, *_softmax(lse2, out)) if return_attn_probs else out


def flash_attn_qkvpacked_func(
    qkv, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
    alibi_slopes=None, deterministic=False, return_attn_probs=False,
):  # fmt: skip
    """Compute self-attention of Q, K and V side by side: qkv [batch, tokens, 3, heads, head_dim].

    The rest is as in `flash_attn_func`.

    >>> flash_attn_qkvpacked_func(torch.randn(2, 24, 3, 4, 64).half()).shape
    torch.Size([2, 24, 4, 64])
    """
    require_dims(qkv=(qkv, "[batch, tokens, 3, heads, head_dim]"))
    return flash_attn_func(
        *qkv.unbind(2), dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
        deterministic, return_attn_probs,
    )  # fmt: skip


@keeps_fixed
def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p: Fixed = 0.0,
    softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
    deterministic=False, return_attn_probs=False, block_table=None,
):  # fmt: skip
    """Compute attention of requests of any lengths, one after another.

    Shapes: q [total_q, heads, head_dim], k, v [total_k, kv_heads, head_dim], or with block_table
    [batch, pages] int32 pools [pages, page_size, kv_heads, head_dim]; cu_seqlens_q, cu_seqlens_k
    [batch + 1] int32 -> out as q; with return_attn_probs, out, softmax_lse [heads, total_q] and an
    empty tensor.
    Units: as in `flash_attn_func`.
    Raises: ValueError naming the argument, its value and what is allowed.

    >>> ends = torch.tensor([0, 3, 8]).int()  # requests of 3 and 5 tokens
    >>> q, k, v = torch.randn(3, 8, 4, 64).half()
    >>> out, softmax_lse, _ = flash_attn_varlen_func(
    ...     q, k, v, ends, ends, 5, 5, causal=True, return_attn_probs=True
    ... )
    >>> softmax_lse.shape
    torch.Size([4, 8])
    """
    options = _options(causal, window_size, softcap, alibi_slopes) | {"scale": softmax_scale}
    if block_table is None:
        ends = (cu_seqlens_q, cu_seqlens_k)
        options["deterministic"] = deterministic
        out, lse2 = attention(q, k, v, *ends, **options)
    else:
        cache = PagedKV(k, v, block_table, cu_seqlens_k.diff())
        out, lse2 = prefill(q, cache, cu_seqlens_q, **options).outputs()
    return (out, *_softmax(lse2, out)) if return_attn_probs else out


def flash_attn_varlen_qkvpacked_func(
    qkv, cu_seqlens, max_seqlen, dropout_p=0.0, softmax_scale=None, causal=False,
    window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
    return_attn_probs=False,
):  # fmt: skip
    """Compute self-attention within each request: qkv [total, 3, heads, head_dim].

    The rest is as in `flash_attn_varlen_func`.

    >>> ends = torch.tensor([0, 3, 8]).int()
    >>> flash_attn_varlen_qkvpacked_func(torch.randn(8, 3, 4, 64).half(), ends, 5).shape
    torch.Size([8, 4, 64])
    """
    require_dims(qkv=(qkv, "[total, 3, heads, head_dim]"))
    return flash_attn_varlen_func(
        *qkv.unbind(1), cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p, softmax_scale,
        causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


@keeps_fixed
def flash_attn_with_kvcache(
    q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None,
    cache_seqlens=None, cache_batch_idx=None, cache_leftpad: Fixed = None, block_table=None,
    softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, rotary_interleaved=True,
    alibi_slopes=None, num_splits=0, return_softmax_lse=False,
):  # fmt: skip
    """Write new keys and values into a cache, if there are any, and attend to all of its keys.

    One query token attends by `labkernels.decode`; several, new keys, or num_splits by `prefill`.
    cache_seqlens: the keys before the new ones, by default all that fit; it does not change.
    rotary_cos, rotary_sin [positions, channels / 2] fp32 or as q: rotate new keys and q, the tokens
    of q from cache_seqlens on; without causal and window_size, all of q at cache_seqlens.
    Shapes: q [batch, tokens, heads, head_dim]; k_cache, v_cache [batch, keys, kv_heads, head_dim],
    or with block_table [batch, pages] int32 pools [pages, page_size, kv_heads, head_dim] whose
    pages have 1 to 256 keys; k, v [batch, tokens, kv_heads, head_dim]; cache_seqlens a number or
    [batch] int32 -> out as q; with return_softmax_lse, out and softmax_lse [batch, heads, tokens].
    Units: as in `flash_attn_func`.
    Raises: ValueError naming the argument, its value and what is allowed; then nothing is written.

    >>> k_cache, v_cache = torch.zeros(2, 2, 40, 1, 64).half()  # 2 requests of up to 40 keys
    >>> q, k, v = torch.ones(3, 2, 1, 1, 64).half()
    >>> out = flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=7)
    >>> k_cache[:, 6:9, 0, 0].tolist()
    [[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]]
    """
    require_dims(q=(q, DIMS), k_cache=(k_cache, DIMS), v_cache=(v_cache, DIMS))
    batch, tokens = q.shape[:2]
    if cache_seqlens is None:
        cache_seqlens = k_cache.shape[1] * (1 if block_table is None else block_table.shape[1])
    for name, table in (("rotary_cos", rotary_cos), ("rotary_sin", rotary_sin)):
        if table is not None and (k is None or rotary_cos is None or rotary_sin is None):
            raise refusal(name, table, "None, or both tables with k and v")
    if k is None:  # nothing is written
        k_cache, v_cache = resolved(k_cache), resolved(v_cache)
    cache = _cache(batch, k_cache, v_cache, cache_seqlens, cache_batch_idx, block_table)
    causal = causal or tokens == 1  # the last place has no key to its right
    options = _options(causal, window_size, softcap, alibi_slopes) | {"scale": softmax_scale}
    if isinstance(cache_seqlens, int) and block_table is None:  # nothing is read from a GPU
        options["kv_lens"] = (cache_seqlens,) * batch
    rows, known = q.flatten(0, 1), {"q_lens": (tokens,) * batch, "splits": num_splits or None}
    if k is not None:
        require_dims(k=(k, DIMS), v=(v, DIMS))
        if k.shape[1] != tokens:
            raise refusal("k.shape[1]", k.shape[1], f"{tokens}, as q")
        new = (x.flatten(0, 1) for x in (k, v))
        if rotary_cos is not None:
            known |= {"rotary": (rotary_cos, rotary_sin), "interleaved": rotary_interleaved}
        step = with_kvcache(rows, cache, *new, equal_ends(q), **known, **options)
    elif tokens == 1 and not num_splits:
        del options["causal"]  # as a decode is
        step = decode(rows, cache, **options)
    else:
        step = prefill(rows, cache, equal_ends(q), **known, **options)
    return outputs(step, q.shape[:2], return_softmax_lse)


def _cache(
    batch: int,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cache_seqlens: int | torch.Tensor,
    cache_batch_idx: torch.Tensor | None,
    block_table: torch.Tensor | None,
) -> PagedKV:
    """Return the cache with lengths of its own, since `with_kvcache` advances them."""
    if isinstance(cache_seqlens, int):
        lengths = torch.full((batch,), cache_seqlens, dtype=torch.int32, device=k_cache.device)
    else:
        lengths = cache_seqlens.clone()
    if block_table is None:
        return caches.contiguous(k_cache, v_cache, lengths, cache_batch_idx)
    if cache_batch_idx is not None:
        raise refusal("cache_batch_idx", cache_batch_idx, "None, with block_table")
    return PagedKV(k_cache, v_cache, block_table, lengths)


def _options(
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    alibi_slopes: torch.Tensor | None,
) -> dict[str, Any]:
    """Return the options of a verb for a variant as flash-attn writes it."""
    left, right = window_size
    if alibi_slopes is not None:
        if alibi_slopes.dim() != 1:
            raise refusal("alibi_slopes", alibi_slopes, "[heads], the same for all requests")
        if not causal and right != 0:  # to the right the lab's bias grows, and flash-attn's falls
            raise ValueError("alibi_slopes without a causal mask, allowed: causal=True")
    right = -1 if causal else right
    return {"causal": causal} | variant_options(left, right, softcap, alibi_slopes)


def outputs(step: Step[Attention], sizes: torch.Size, with_lse: bool):
    """Return out [*sizes, heads, head_dim] of rows, and softmax_lse if it is asked for."""
    out, lse2 = (x.unflatten(0, sizes) for x in step.outputs())
    return (out, _softmax(lse2, out)[0]) if with_lse else out


def _softmax(lse2: torch.Tensor, out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return softmax_lse, natural and with heads before tokens, and the pattern of no dropout."""
    return (lse2 * LN2).transpose(-1, -2).contiguous(), out.new_empty(0)
