"""Shared code of the Triton kernels with packed rows: the rows of a program, and how they finish.

Names: i_ indices of the block's work, o_ offset vectors, m_ masks, p_ pointers, b_ block values.
A row is one head of one token; the heads that share a KV head lie side by side.
"""

import triton
import triton.language as tl

from labkernels.cuda.triton_online_softmax import (
    LOWEST_SCORE,
    finalize,
    in_head,
    merge,
    rescale_rows,
)


@triton.jit
def block_rows(
    work,  # [blocks, 4]: request, query tile, KV head, split
    cu_seqlens_q,  # [batch + 1]
    cu_seqlens_k,  # [batch + 1], of ragged K and V
    kv_len,  # [batch], of paged K and V
    group: tl.constexpr,
    ROWS: tl.constexpr,
    CAUSAL: tl.constexpr,
    PAGED: tl.constexpr,
):
    """Return the rows of a block, and how many keys each, the first and the last row see."""
    p_work = work + 4 * tl.program_id(0)
    i_request, i_tile = tl.load(p_work), tl.load(p_work + 1)
    i_kv, i_split = tl.load(p_work + 2), tl.load(p_work + 3)
    first_token = tl.load(cu_seqlens_q + i_request)
    q_len = tl.load(cu_seqlens_q + i_request + 1) - first_token
    if PAGED:
        first_key = 0
        n_keys = tl.load(kv_len + i_request)
    else:
        first_key = tl.load(cu_seqlens_k + i_request)
        n_keys = tl.load(cu_seqlens_k + i_request + 1) - first_key
    # counted from the block's first token, so that the offset fits 32 bits
    token = i_tile * ROWS // group
    o_row = (i_tile * ROWS - token * group) + tl.arange(0, ROWS)
    o_token = o_row // group
    head = i_kv * group + o_row - o_token * group
    m_row = token + o_token < q_len
    least = n_keys
    most = n_keys
    limit = tl.zeros([ROWS], tl.int32) + n_keys
    if CAUSAL:  # aligned to the end: the last token sees all keys
        first_sees = n_keys - q_len + token + 1
        last = tl.minimum(q_len - 1, (i_tile * ROWS + ROWS - 1) // group)
        limit = tl.minimum(n_keys, tl.maximum(0, first_sees + o_token))
        least = tl.minimum(n_keys, tl.maximum(0, first_sees))
        most = tl.maximum(0, first_sees + last - token)
    token += first_token
    return (
        i_request, i_kv, i_split, token, o_token, head, m_row,
        first_key, n_keys, limit, least, most,
    )  # fmt: skip


@triton.jit
def places(cu_seqlens_q, i_request, token, o_token, n_keys):
    """Return the last key that each row of block_rows would see under a causal mask."""
    return n_keys - tl.load(cu_seqlens_q + i_request + 1) + token + o_token


@triton.jit
def window(b_place, n_keys, limit, least, most, window_left, window_right, STEP: tl.constexpr):
    """Return limits of block_rows as a window changes them, for rows with these places.

    Before them, return where the first step begins, and where the last row's keys begin.
    """
    last = tl.minimum(tl.max(b_place, axis=0), n_keys - 1)  # rows past the end have further places
    first = tl.min(b_place, axis=0)
    start = 0
    from_all = 0
    if window_right is not None:
        limit = tl.minimum(n_keys, tl.maximum(0, b_place + 1 + window_right))
        least = tl.minimum(n_keys, tl.maximum(0, first + 1 + window_right))
        most = tl.minimum(n_keys, tl.maximum(0, last + 1 + window_right))
    if window_left is not None:
        start = tl.maximum(0, first - window_left) // STEP * STEP
        from_all = last - window_left
    return start, from_all, limit, least, most


@triton.jit
def store(
    out,
    lse2,
    partial_o,
    partial_m,
    partial_l,
    b_o,
    b_m,
    b_l,
    token,
    o_at,
    m_row,
    i_split,
    splits,
    q_heads,
    D_V: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """Write the State of a split, or the output of a whole row."""
    o_dim, m_o = tl.arange(0, b_o.shape[1])[None, :], in_head(m_row, D_V, b_o.shape[1])
    first = token.to(tl.int64) * q_heads
    if SPLIT:
        o_slot = o_at * splits + i_split
        first *= splits
        tl.store(partial_m + first + o_slot, b_m, mask=m_row)
        tl.store(partial_l + first + o_slot, b_l, mask=m_row)
        p_o = partial_o + first * D_V + (o_slot[:, None] * D_V + o_dim)
        tl.store(p_o, b_o, mask=m_o)
    else:
        inverse_l, b_lse2 = finalize(b_m, b_l)
        p_out = out + first * D_V + (o_at[:, None] * D_V + o_dim)
        tl.store(p_out, rescale_rows(b_o, inverse_l).to(out.dtype.element_ty), mask=m_o)
        tl.store(lse2 + first + o_at, b_lse2, mask=m_row)


@triton.jit
def merge_splits(
    cu_seqlens_q,
    cu_seqlens_k,
    kv_len,
    work,
    out,
    lse2,
    partial_o,
    partial_m,
    partial_l,
    q_heads,
    group: tl.constexpr,
    keys_per_split,
    splits,
    sinks,
    window_left,
    window_right,
    D_V: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
    CAUSAL: tl.constexpr,
    PAGED: tl.constexpr,
):
    """One program merges the splits' States of ROWS rows, in split order."""
    i_request, _, i_split, token, o_token, head, m_row, _, n_keys, limit, least, most = block_rows(
        work, cu_seqlens_q, cu_seqlens_k, kv_len, group, ROWS, CAUSAL, PAGED
    )
    start, _, _, _, most = window(
        places(cu_seqlens_q, i_request, token, o_token, n_keys),
        n_keys, limit, least, most, window_left, window_right, STEP,
    )  # fmt: skip
    live = tl.cdiv(most - start, keys_per_split)
    if sinks is not None:  # the first split has them, even without keys
        live = tl.maximum(live, 1)
    if i_split > 0:  # the block of the first split merges
        return
    o_at = o_token * q_heads + head
    first = token.to(tl.int64) * q_heads * splits
    b_m = tl.full([ROWS], LOWEST_SCORE, tl.float32)
    b_l = tl.zeros([ROWS], tl.float32)
    b_o = tl.zeros([ROWS, WIDTH], tl.float32)
    for s in range(0, live):
        slot = first + o_at * splits + s
        part_m = tl.load(partial_m + slot, mask=m_row, other=0.0)
        part_l = tl.load(partial_l + slot, mask=m_row, other=0.0)
        p_o = partial_o + slot[:, None] * D_V + tl.arange(0, WIDTH)[None, :]
        part_o = tl.load(p_o, mask=in_head(m_row, D_V, WIDTH), other=0.0)
        b_m, b_l, rescale, weight = merge(b_m, b_l, part_m, part_l)
        b_o = rescale_rows(b_o, rescale) + rescale_rows(part_o, weight)
    store(out, lse2, partial_o, partial_m, partial_l, b_o, b_m, b_l,
          token, o_at, m_row, 0, splits, q_heads, D_V, False)  # fmt: skip
