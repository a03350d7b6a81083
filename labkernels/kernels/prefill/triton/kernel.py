"""Prefill in Triton: tensor cores on (tl.dot) or off (fp32 FMA) from one source.

Names: i_ indices of the block's work, o_ offset vectors, m_ masks, p_ pointers, d_ descriptors, b_
block values. A row is one head of one token; the heads that share a KV head lie side by side.
"""

import triton
import triton.language as tl

from labkernels.cuda.triton_online_softmax import LOWEST_SCORE, rescale_rows, update
from labkernels.kernels.packed_gqa.triton_rows import block_rows, store

CHUNK = tl.constexpr(8)  # elements: as paged_kv.CHUNK


@triton.jit
def consume(
    b_o,
    b_m,
    b_l,
    b_q,
    b_q_tail,
    d_k,
    d_k_tail,
    d_v,
    p_k,
    p_v,
    pages,
    k_stride_page,
    k_stride_token,
    v_stride_page,
    v_stride_token,
    page_size,
    page_shift,
    page_inverse,
    first,
    end,
    full,
    limit,
    scale_log2,
    D: tl.constexpr,
    D_TAIL: tl.constexpr,
    D_V: tl.constexpr,
    KEYS: tl.constexpr,
    PAGED: tl.constexpr,
    EQUAL_STRIDES: tl.constexpr,
    DESCRIBED: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Folds keys first to end - 1 into the State; row i sees keys below limit[i]."""
    o_key = tl.arange(0, KEYS)
    for start in tl.range(first, end, KEYS):
        key = start + o_key
        # [KEYS, D]; keys past the last arrive as zeros: a P of zero times a stale NaN would be NaN
        if DESCRIBED:
            b_k = d_k.load([start, 0])
        else:
            m_key = key < end
            if PAGED:
                # key // page_size; then chunks from the pool's first, which 32 bits count
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
            b_k = tl.load(p_key + tl.arange(0, D)[None, :], mask=m_key[:, None], other=0.0)
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
        if start >= full:  # below it every row sees every key
            b_s = tl.where(key[None, :] < limit[:, None], b_s, float("-inf"))
        b_p, b_m, b_l, rescale = update(b_s, b_m, b_l, scale_log2)
        b_o = rescale_rows(b_o, rescale)
        if DESCRIBED:
            b_v = d_v.load([start, 0])
        else:
            p_value = p_value + tl.arange(0, D_V)[None, :]
            b_v = tl.load(p_value, mask=m_key[:, None], other=0.0)
        if WIDE:
            b_v = b_v.to(tl.float32)
        b_o = tl.dot(b_p.to(b_v.dtype), b_v, acc=b_o, input_precision="ieee")
    return b_o, b_m, b_l


@triton.jit
def prefill(
    q,  # [total, q_heads, D + D_TAIL]
    k,  # ragged [total, kv_heads, D + D_TAIL], paged [pages, page_size, kv_heads, D + D_TAIL]
    v,  # as k, with D_V channels
    cu_seqlens_q,
    cu_seqlens_k,
    page_table,  # [batch, max_pages]
    kv_len,
    work,
    out,  # [total, q_heads, D_V]
    lse2,  # [total, q_heads], base 2
    partial_o,  # [total, q_heads, splits, D_V], not yet divided by l
    partial_m,  # [total, q_heads, splits], log2 units
    partial_l,  # [total, q_heads, splits]
    q_stride_token,
    q_stride_head,
    k_stride_page,  # of pages and their tokens in chunks, all other strides in elements
    k_stride_token,
    k_stride_head,
    v_stride_page,
    v_stride_token,
    v_stride_head,
    page_table_stride,
    page_size,
    page_shift,
    page_inverse,
    q_heads,
    group: tl.constexpr,
    keys_per_split,
    splits,
    scale_log2,
    D: tl.constexpr,
    D_TAIL: tl.constexpr,
    D_V: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    CAUSAL: tl.constexpr,
    PAGED: tl.constexpr,
    EQUAL_STRIDES: tl.constexpr,
    TENSOR_CORES: tl.constexpr,
    UPCAST: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """One program: ROWS rows of one KV head of one request, over one split of its keys."""
    # fmt: off
    (
        i_request, i_kv, i_split, token, o_token, head, m_row,
        first_key, n_keys, limit, least, most,
    ) = block_rows(work, cu_seqlens_q, cu_seqlens_k, kv_len, group, ROWS, CAUSAL, PAGED)
    # fmt: on
    first = i_split * keys_per_split
    end = tl.minimum(first + keys_per_split, most)
    full = tl.minimum(least, end) - KEYS + 1  # a step that begins below it needs no mask

    # off: fp32 operands with "ieee" keep tensor cores unused. The interpreter's bf16 is wrong.
    WIDE: tl.constexpr = UPCAST or not TENSOR_CORES
    row = token.to(tl.int64) + o_token
    p_q = (q + row * q_stride_token + head.to(tl.int64) * q_stride_head)[:, None]
    b_q = tl.load(p_q + tl.arange(0, D)[None, :], mask=m_row[:, None], other=0.0)
    b_q_tail = b_q
    if D_TAIL:
        p_q += D
        b_q_tail = tl.load(p_q + tl.arange(0, D_TAIL)[None, :], mask=m_row[:, None], other=0.0)
    if WIDE:
        b_q, b_q_tail = b_q.to(tl.float32), b_q_tail.to(tl.float32)
    p_k = k + i_kv.to(tl.int64) * k_stride_head
    p_v = v + i_kv.to(tl.int64) * v_stride_head
    pages = page_table + i_request.to(tl.int64) * page_table_stride
    d_k, d_k_tail, d_v = p_k, p_k, p_v
    if not PAGED:
        p_k += first_key.to(tl.int64) * k_stride_token
        p_v += first_key.to(tl.int64) * v_stride_token
    # off: fp32 operands go to registers, where a descriptor's detour through shared memory spills
    DESCRIBED: tl.constexpr = TENSOR_CORES and not PAGED
    if DESCRIBED:
        d_k = tl.make_tensor_descriptor(
            p_k, shape=[n_keys, D + D_TAIL], strides=[k_stride_token, 1], block_shape=[KEYS, D]
        )
        if D_TAIL:
            d_k_tail = tl.make_tensor_descriptor(
                p_k,
                shape=[n_keys, D + D_TAIL],
                strides=[k_stride_token, 1],
                block_shape=[KEYS, D_TAIL],
            )
        d_v = tl.make_tensor_descriptor(
            p_v, shape=[n_keys, D_V], strides=[v_stride_token, 1], block_shape=[KEYS, D_V]
        )

    # m in log2 units, [ROWS]; o [ROWS, D_V]; all fp32
    b_m = tl.full([ROWS], LOWEST_SCORE, tl.float32)
    b_l, b_o = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, D_V], tl.float32)
    b_o, b_m, b_l = consume(
        b_o, b_m, b_l, b_q, b_q_tail, d_k, d_k_tail, d_v, p_k, p_v, pages,
        k_stride_page, k_stride_token, v_stride_page, v_stride_token, page_size, page_shift,
        page_inverse, first, end, full, tl.minimum(limit, end), scale_log2,
        D, D_TAIL, D_V, KEYS, PAGED, EQUAL_STRIDES, DESCRIBED, WIDE,
    )  # fmt: skip
    store(out, lse2, partial_o, partial_m, partial_l, b_o, b_m, b_l,
          token, o_token * q_heads + head, m_row, i_split, splits, q_heads, D_V, SPLIT)  # fmt: skip
