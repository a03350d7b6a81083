"""Paged decode in Triton: tensor cores on (tl.dot) or off (fp32 FMA) from one source.

Names: i_ program ids, o_ offset vectors, m_ masks, p_ pointers, b_ block values.
"""

import triton
import triton.language as tl

from labkernels.cuda.triton_online_softmax import (
    LOWEST_SCORE,
    finalize,
    in_head,
    merge,
    no_keys,
    rescale_rows,
    update,
)
from labkernels.cuda.triton_variant import begin_with_sinks, nearest_biases, shaped, slopes
from labkernels.kernels.decode import schedule

SHORTEST_SPLIT = tl.constexpr(schedule.SHORTEST_SPLIT)
DOUBLED_ABOVE = tl.constexpr(schedule.DOUBLED_ABOVE)
DOUBLINGS = tl.constexpr(len(schedule.DOUBLED_ABOVE))


@triton.jit
def store(out, lse2, partial_o, partial_m, partial_l, b_o, b_m, b_l, row, m_row, o_dim, i_split,
          splits, has_keys, D: tl.constexpr, SPLIT: tl.constexpr):  # fmt: skip
    """Write the State of a split, or the output of whole rows."""
    m_o = in_head(m_row, D, b_o.shape[1])
    if SPLIT:
        if has_keys:  # the merge does not read splits past the end
            slot = row * splits + i_split
            tl.store(partial_m + slot, b_m, mask=m_row)
            tl.store(partial_l + slot, b_l, mask=m_row)
            tl.store(partial_o + slot[:, None] * D + o_dim[None, :], b_o, mask=m_o)
    else:
        inverse_l, b_lse2 = finalize(b_m, b_l)
        p_out = out + row[:, None] * D + o_dim[None, :]
        tl.store(p_out, rescale_rows(b_o, inverse_l).to(out.dtype.element_ty), mask=m_o)
        tl.store(lse2 + row, b_lse2, mask=m_row)


@triton.jit
def load_query(q, head, m_row, o_dim, q_stride_head,
               D: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    """Return the rows of query heads, [ROWS, WIDTH] in the input's format or in fp32."""
    p_q = q + head[:, None].to(tl.int64) * q_stride_head + o_dim[None, :]
    b_q = tl.load(p_q, mask=in_head(m_row, D, o_dim.shape[0]), other=0.0)
    return b_q.to(tl.float32) if WIDE else b_q


@triton.jit
def load_keys(k_pool, v_pool, pages, key, m_key, i_kv, o_dim, kv_stride_page, kv_stride_token,
              kv_stride_head, page_size, scale_stride_page, scale_stride_block, keys_per_scale,
              D: tl.constexpr, WIDE: tl.constexpr, KIND: tl.constexpr):  # fmt: skip
    """Return K and V of some keys, [KEYS, WIDTH], 0 past the last one, and their scales' place.

    KIND: the format of Q; K and V of 8 bits become numbers of this format, which are equal.
    """
    slot = key // page_size
    page = tl.load(pages + slot, mask=m_key, other=0)
    token = key - slot * page_size
    o_kv = page.to(tl.int64) * kv_stride_page + token.to(tl.int64) * kv_stride_token
    o_kv = (o_kv + i_kv.to(tl.int64) * kv_stride_head)[:, None] + o_dim[None, :]
    m_kv = in_head(m_key, D, o_dim.shape[0])
    b_k = tl.load(k_pool + o_kv, mask=m_kv, other=0.0)
    b_v = tl.load(v_pool + o_kv, mask=m_kv, other=0.0)
    if WIDE:
        b_k, b_v = b_k.to(tl.float32), b_v.to(tl.float32)
    else:
        b_k, b_v = b_k.to(KIND), b_v.to(KIND)
    o_scale = page.to(tl.int64) * scale_stride_page
    if keys_per_scale is not None:
        o_scale += token // keys_per_scale * scale_stride_block
    return b_k, b_v, o_scale


@triton.jit
def scaled(b_x, scale, o_scale, m_key, keys_per_scale):
    """Return scores or P [ROWS, KEYS] times their scales, where blocks of keys have scales."""
    if keys_per_scale is not None:
        b_x *= tl.load(scale + o_scale, mask=m_key, other=0.0)[None, :]
    return b_x


@triton.jit
def keys_of_split(keys_per_split, n_keys, BY_LENGTH: tl.constexpr):
    """Return the keys per split of a request of which the query sees some keys."""
    if BY_LENGTH:
        keys_per_split = SHORTEST_SPLIT
        for i in tl.static_range(DOUBLINGS):
            keys_per_split = tl.where(n_keys > DOUBLED_ABOVE[i], 2 * keys_per_split, keys_per_split)
    return keys_per_split


@triton.jit
def span(length, i_split, keys_per_split, window_left, BY_LENGTH: tl.constexpr):
    """Return the first key of a split, and the key behind its last one."""
    begin = 0 if window_left is None else tl.maximum(length - 1 - window_left, 0)
    keys_per_split = keys_of_split(keys_per_split, length - begin, BY_LENGTH)
    first = begin + i_split * keys_per_split
    return first, tl.minimum(first + keys_per_split, length)


@triton.jit
def decode(
    q,  # [batch, q_heads, D]
    k_pool, v_pool,  # [pages, page_size, kv_heads, D], with the same strides
    page_table, kv_len,  # [batch, max_pages], [batch]
    out,  # [batch, q_heads, D]
    lse2,  # [batch, q_heads], base 2
    partial_o, partial_m, partial_l,  # [batch, q_heads, splits] and D channels of o
    q_stride_batch, q_stride_head,
    kv_stride_page, kv_stride_token, kv_stride_head, page_table_stride, page_size,
    q_heads, group, keys_per_split, splits, scale_log2,
    k_scale, v_scale, k_scale_stride, v_scale_stride,  # [kv_heads] of 8 bits, else None
    scale_stride_page, scale_stride_block, keys_per_scale,  # of blocks, else None
    alibi, sinks, bias, reach, window_left, soft_cap_log2, exponent_of_cap,  # None: not asked
    D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    TENSOR_CORES: tl.constexpr, UPCAST: tl.constexpr, SPLIT: tl.constexpr, BY_LENGTH: tl.constexpr,
):  # fmt: skip
    """One program: the query heads of one KV head over one split of one request's keys."""
    i_kv, i_split, i_batch = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    o_row, o_dim, o_key = tl.arange(0, ROWS), tl.arange(0, WIDTH), tl.arange(0, KEYS)
    head, m_row = i_kv * group + o_row, o_row < group
    # Without tensor cores, operands are fp32 and products "ieee"; Triton would turn a broadcast
    # product and its sum into TF32 tensor-core products. UPCAST: the interpreter's bf16 arithmetic
    # is wrong.
    WIDE: tl.constexpr = UPCAST or not TENSOR_CORES
    b_q = load_query(q + i_batch * q_stride_batch, head, m_row, o_dim, q_stride_head, D, WIDE)
    length, page_table = tl.load(kv_len + i_batch), page_table + i_batch * page_table_stride
    first, end = span(length, i_split, keys_per_split, window_left, BY_LENGTH)
    OF_HEAD: tl.constexpr = (k_scale is not None) and (keys_per_scale is None)
    if OF_HEAD:
        k_factor = tl.load(k_scale + i_kv * k_scale_stride)
        scale_log2 *= k_factor
        if exponent_of_cap is not None:
            exponent_of_cap *= k_factor
    b_m, b_l, b_o = no_keys(ROWS, WIDTH)
    b_m, b_l = begin_with_sinks(b_m, b_l, sinks, head, m_row, i_split)
    SHAPED: tl.constexpr = not (alibi is None and bias is None and soft_cap_log2 is None)
    b_slope = slopes(alibi, head, m_row)
    p_bias = nearest_biases(bias, reach, head, m_row)
    b_place, factor = 0 * head + length - 1, 1.0 if SHAPED else scale_log2
    for start in range(first, end, KEYS):
        key, m_key = start + o_key, start + o_key < end
        b_k, b_v, o_scale = load_keys(
            k_pool, v_pool, page_table, key, m_key, i_kv, o_dim, kv_stride_page, kv_stride_token,
            kv_stride_head, page_size, scale_stride_page, scale_stride_block, keys_per_scale,
            D, WIDE, q.dtype.element_ty)  # fmt: skip
        b_s = tl.dot(b_q, tl.trans(b_k), input_precision="ieee")  # [ROWS, KEYS] fp32
        b_s = scaled(b_s, k_scale, i_kv * k_scale_stride + o_scale, m_key, keys_per_scale)
        if SHAPED:
            b_s = shaped(b_s, key, b_place, b_slope, p_bias, reach,
                         soft_cap_log2, exponent_of_cap, scale_log2)  # fmt: skip
        b_s = tl.where(m_key[None, :], b_s, float("-inf"))
        b_p, b_m, b_l, rescale = update(b_s, b_m, b_l, factor)
        b_o = rescale_rows(b_o, rescale)
        b_p = scaled(b_p, v_scale, i_kv * v_scale_stride + o_scale, m_key, keys_per_scale)
        b_o = tl.dot(b_p.to(b_v.dtype), b_v, acc=b_o, input_precision="ieee")
    if OF_HEAD:  # the merge of splits is linear in their outputs
        b_o *= tl.load(v_scale + i_kv * v_scale_stride)
    row, has_keys = i_batch * q_heads + head, (first < end) | ((sinks is not None) & (i_split == 0))
    store(out, lse2, partial_o, partial_m, partial_l, b_o, b_m, b_l,
          row, m_row, o_dim, i_split, splits, has_keys, D, SPLIT)  # fmt: skip


@triton.jit
def merge_splits(
    kv_len,  # [batch]
    out,  # [batch, q_heads, D]
    lse2,  # [batch, q_heads], base 2
    partial_o,  # [batch, q_heads, splits, D]
    partial_m,  # [batch, q_heads, splits], log2 units
    partial_l,  # [batch, q_heads, splits]
    q_heads,
    keys_per_split,
    splits,
    sinks,
    window_left,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    BY_LENGTH: tl.constexpr,
):
    """One program merges the splits' States of one query head of a request, in split order."""
    i_head, i_batch = tl.program_id(0), tl.program_id(1).to(tl.int64)
    o_dim = tl.arange(0, WIDTH)
    row = i_batch * q_heads + i_head
    length = tl.load(kv_len + i_batch)
    if window_left is not None:
        length = tl.minimum(length, window_left + 1)
    live = tl.cdiv(length, keys_of_split(keys_per_split, length, BY_LENGTH))
    if sinks is not None:  # the first split has them, even without keys
        live = tl.maximum(live, 1)
    m, l = tl.full([], LOWEST_SCORE, tl.float32), tl.full([], 0.0, tl.float32)
    # [WIDTH] fp32
    b_o = tl.zeros([WIDTH], tl.float32)
    for s in range(0, live):
        slot = row * splits + s
        part_o = tl.load(partial_o + slot * D + o_dim, mask=o_dim < D, other=0.0)
        m, l, rescale, weight = merge(m, l, tl.load(partial_m + slot), tl.load(partial_l + slot))
        b_o = b_o * rescale + part_o * weight
    inverse_l, b_lse2 = finalize(m, l)
    b_o = (b_o * inverse_l).to(out.dtype.element_ty)
    tl.store(out + row * D + o_dim, b_o, mask=o_dim < D)
    tl.store(lse2 + row, b_lse2)
