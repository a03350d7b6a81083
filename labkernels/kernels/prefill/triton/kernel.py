"""Prefill in Triton: tensor cores on (tl.dot) or off (fp32 FMA) from one source.

Names: i_ indices of the block's work, o_ offset vectors, m_ masks, p_ pointers, d_ descriptors, b_
block values. A row is one head of one token; the heads that share a KV head lie side by side.
"""

import triton
import triton.language as tl

from labkernels import units
from labkernels.cuda.triton_online_softmax import in_head, no_keys, rescale_rows, update
from labkernels.cuda.triton_variant import (
    begin_with_sinks,
    first_bits,
    nearest_biases,
    seen,
    shaped,
    slopes,
)
from labkernels.kernels.packed_gqa.triton_rows import block_rows, places, store, window

CHUNK = tl.constexpr(units.CHUNK)


@triton.jit
def addresses(
    p_k, p_v, pages, key, m_key, k_stride_page, k_stride_token, v_stride_page, v_stride_token,
    page_size, page_shift, page_inverse, PAGED: tl.constexpr, EQUAL_STRIDES: tl.constexpr,
):  # fmt: skip
    """Return where the rows of K and of V of some keys begin."""
    if PAGED:
        # key // page_size; then offsets in chunks, which fit 32 bits
        slot = tl.umulhi(2 * key.to(tl.uint32), page_inverse.to(tl.uint32)) >> page_shift
        page = tl.load(pages + slot, mask=m_key, other=0).to(tl.uint32)
        token = key.to(tl.uint32) - slot * page_size
        o_k = page * k_stride_page + token * k_stride_token
        o_v = o_k
        if not EQUAL_STRIDES:
            o_v = page * v_stride_page + token * v_stride_token
        p_key = (p_k + o_k.to(tl.int64) * CHUNK)[:, None]
        p_value = (p_v + o_v.to(tl.int64) * CHUNK)[:, None]
    else:
        p_key = (p_k + key.to(tl.int64) * k_stride_token)[:, None]
        p_value = (p_v + key.to(tl.int64) * v_stride_token)[:, None]
    return p_key, p_value


@triton.jit
def consume(
    b_o, b_m, b_l, b_q, b_q_tail, d_k, d_k_tail, d_v, p_k, p_v, pages,
    k_stride_page, k_stride_token, v_stride_page, v_stride_token,
    page_size, page_shift, page_inverse, first, end, full, limit, scale_log2,
    b_place, from_all, b_slope, p_bias, reach, window_left, soft_cap_log2, exponent_of_cap,
    mask, b_bit, D: tl.constexpr, D_TAIL: tl.constexpr, D_V: tl.constexpr, KEYS: tl.constexpr,
    PAGED: tl.constexpr, EQUAL_STRIDES: tl.constexpr, DESCRIBED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Add keys first to end - 1 to the State; row i sees keys below limit[i]."""
    o_key = tl.arange(0, KEYS)
    BY_DISTANCE: tl.constexpr = (b_slope is not None) or (p_bias is not None)
    SHAPED: tl.constexpr = BY_DISTANCE or (soft_cap_log2 is not None)
    factor = 1.0 if SHAPED else scale_log2
    for start in tl.range(first, end, KEYS):
        key = start + o_key
        # [KEYS, D]; keys past the last arrive as zeros: a P of zero times a stale NaN would be NaN
        if DESCRIBED:
            b_k = d_k.load([start, 0])
        else:
            m_key = key < end
            if window_left is not None:
                m_key = m_key & (key >= tl.min(b_place, axis=0) - window_left)
            p_key, p_value = addresses(
                p_k, p_v, pages, key, m_key, k_stride_page, k_stride_token, v_stride_page,
                v_stride_token, page_size, page_shift, page_inverse, PAGED, EQUAL_STRIDES,
            )  # fmt: skip
            m_kv = in_head(m_key, D_V, D)
            b_k = tl.load(p_key + tl.arange(0, D)[None, :], mask=m_kv, other=0.0)
        if WIDE:
            b_k = b_k.to(tl.float32)
        # [ROWS, KEYS] fp32
        b_s = tl.dot(b_q, tl.trans(b_k), input_precision="ieee")
        if D_TAIL:
            if DESCRIBED:
                b_k_tail = d_k_tail.load([start, D])
            else:
                p_tail = p_key + D + tl.arange(0, D_TAIL)[None, :]
                b_k_tail = tl.load(p_tail, mask=m_key[:, None], other=0.0)
            if WIDE:
                b_k_tail = b_k_tail.to(tl.float32)
            b_s = tl.dot(b_q_tail, tl.trans(b_k_tail), acc=b_s, input_precision="ieee")
        if SHAPED:
            b_s = shaped(b_s, key, b_place, b_slope, p_bias, reach,
                         soft_cap_log2, exponent_of_cap, scale_log2)  # fmt: skip
        partial = start >= full  # in steps between, every row sees every key
        if window_left is not None:
            partial = partial | (start < from_all)
        if partial or (mask is not None):
            m_seen = seen(key, limit, b_place, window_left, mask, b_bit)
            b_s = tl.where(m_seen, b_s, float("-inf"))
        b_p, b_m, b_l, rescale = update(b_s, b_m, b_l, factor)
        b_o = rescale_rows(b_o, rescale)
        if DESCRIBED:
            b_v = d_v.load([start, 0])
        else:
            b_v = tl.load(p_value + tl.arange(0, D)[None, :], mask=m_kv, other=0.0)
        if WIDE:
            b_v = b_v.to(tl.float32)
        b_o = tl.dot(b_p.to(b_v.dtype), b_v, acc=b_o, input_precision="ieee")
    return b_o, b_m, b_l


@triton.jit
def load_query(p_q, m_row, D: tl.constexpr, D_TAIL: tl.constexpr, D_V: tl.constexpr,
               WIDE: tl.constexpr):  # fmt: skip
    """Load the rows of Q: D channels, and the D_TAIL channels after them."""
    b_q = tl.load(p_q + tl.arange(0, D)[None, :], mask=in_head(m_row, D_V, D), other=0.0)
    b_q_tail = b_q
    if D_TAIL:
        p_q += D
        b_q_tail = tl.load(p_q + tl.arange(0, D_TAIL)[None, :], mask=m_row[:, None], other=0.0)
    if WIDE:
        b_q, b_q_tail = b_q.to(tl.float32), b_q_tail.to(tl.float32)
    return b_q, b_q_tail


@triton.jit
def describe(p_keys, n_keys, stride_token,
             CHANNELS: tl.constexpr, BLOCK: tl.constexpr, KEYS: tl.constexpr):  # fmt: skip
    """Make a descriptor of a request's K or V, which loads BLOCK channels of KEYS keys."""
    return tl.make_tensor_descriptor(
        p_keys, shape=[n_keys, CHANNELS], strides=[stride_token, 1], block_shape=[KEYS, BLOCK]
    )


@triton.jit
def descriptors(p_k, p_v, n_keys, k_stride_token, v_stride_token, D: tl.constexpr,
                D_TAIL: tl.constexpr, D_V: tl.constexpr, KEYS: tl.constexpr):  # fmt: skip
    """Return descriptors of a request's K, of its last D_TAIL channels, and of V."""
    d_k = describe(p_k, n_keys, k_stride_token, D_V + D_TAIL, D, KEYS)
    d_k_tail = d_k
    if D_TAIL:
        d_k_tail = describe(p_k, n_keys, k_stride_token, D_V + D_TAIL, D_TAIL, KEYS)
    return d_k, d_k_tail, describe(p_v, n_keys, v_stride_token, D_V, D, KEYS)


@triton.jit
def prefill(
    q,  # [total, q_heads, D_V + D_TAIL]; zeros fill tiles of D channels, where D_V is less
    k,  # ragged [total, kv_heads, D_V + D_TAIL], paged [pages, page_size, kv_heads, D_V + D_TAIL]
    v,  # as k, with D_V channels
    cu_seqlens_q, cu_seqlens_k, page_table, kv_len, work,  # page_table [batch, max_pages]
    out, lse2,  # [total, q_heads, D_V]; [total, q_heads], base 2
    partial_o,  # [total, q_heads, splits, D_V], not yet divided by l
    partial_m, partial_l,  # [total, q_heads, splits]; m in log2 units
    q_stride_token, q_stride_head,
    # of pages and their tokens in chunks, all other strides in elements
    k_stride_page, k_stride_token, k_stride_head, v_stride_page, v_stride_token, v_stride_head,
    page_table_stride, page_size, page_shift, page_inverse,
    q_heads, group: tl.constexpr, keys_per_split, splits, scale_log2,
    alibi, sinks, bias, reach, window_left, window_right, soft_cap_log2, exponent_of_cap, mask,
    mask_begins, D: tl.constexpr, D_TAIL: tl.constexpr, D_V: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr, CAUSAL: tl.constexpr, PAGED: tl.constexpr, EQUAL_STRIDES: tl.constexpr,
    TENSOR_CORES: tl.constexpr, UPCAST: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """One program: ROWS rows of one KV head of one request, over one split of its keys."""
    i_request, i_kv, i_split, token, o_token, head, m_row, first_key, n_keys, limit, least, most = (
        block_rows(work, cu_seqlens_q, cu_seqlens_k, kv_len, group, ROWS, CAUSAL, PAGED)
    )
    b_place = places(cu_seqlens_q, i_request, token, o_token, n_keys)
    start, from_all, limit, least, most = window(
        b_place, n_keys, limit, least, most, window_left, window_right, KEYS
    )
    first = start + i_split * keys_per_split
    end = tl.minimum(first + keys_per_split, most)
    full = tl.minimum(least, end) - KEYS + 1  # a step that begins below it needs no mask
    # Without tensor cores, operands are fp32 and products "ieee". UPCAST: the interpreter's bf16
    # arithmetic is wrong.
    WIDE: tl.constexpr = UPCAST or not TENSOR_CORES
    p_q = q + (token.to(tl.int64) + o_token) * q_stride_token + head.to(tl.int64) * q_stride_head
    b_q, b_q_tail = load_query(p_q[:, None], m_row, D, D_TAIL, D_V, WIDE)
    p_k = k + i_kv.to(tl.int64) * k_stride_head
    p_v = v + i_kv.to(tl.int64) * v_stride_head
    pages = page_table + i_request.to(tl.int64) * page_table_stride
    d_k, d_k_tail, d_v = p_k, p_k, p_v
    if not PAGED:
        p_k += first_key.to(tl.int64) * k_stride_token
        p_v += first_key.to(tl.int64) * v_stride_token
    # Without tensor cores, operands are in registers; loads by a descriptor would spill there.
    DESCRIBED: tl.constexpr = TENSOR_CORES and not PAGED
    if DESCRIBED:
        d_k, d_k_tail, d_v = descriptors(
            p_k, p_v, n_keys, k_stride_token, v_stride_token, D, D_TAIL, D_V, KEYS
        )
    b_m, b_l, b_o = no_keys(ROWS, D)
    b_m, b_l = begin_with_sinks(b_m, b_l, sinks, head, m_row, i_split)
    b_o, b_m, b_l = consume(
        b_o, b_m, b_l, b_q, b_q_tail, d_k, d_k_tail, d_v, p_k, p_v, pages,
        k_stride_page, k_stride_token, v_stride_page, v_stride_token, page_size, page_shift,
        page_inverse, first, end, full, tl.minimum(limit, end), scale_log2,
        b_place, from_all, slopes(alibi, head, m_row), nearest_biases(bias, reach, head, m_row),
        reach, window_left, soft_cap_log2, exponent_of_cap,
        mask, first_bits(mask_begins, i_request, cu_seqlens_q, token, o_token, m_row, n_keys),
        D, D_TAIL, D_V, KEYS, PAGED, EQUAL_STRIDES, DESCRIBED, WIDE,
    )  # fmt: skip
    store(out, lse2, partial_o, partial_m, partial_l, b_o, b_m, b_l,
          token, o_token * q_heads + head, m_row, i_split, splits, q_heads, D_V, SPLIT)  # fmt: skip
