"""The gradients of attention in Triton: tensor cores on (tl.dot) or off (fp32 FMA).

Names: i_ indices of the block's work, o_ offset vectors, m_ masks, p_ pointers, b_ block values.
Both passes (over the rows for dK and dV, over the keys for dq) recompute P and dS from lse2.
"""

import triton
import triton.language as tl

from labkernels.cuda.triton_online_softmax import in_head


@triton.jit
def place(work, cu_seqlens_q, cu_seqlens_k):
    """Return a block's tile and head, where its rows and keys begin, and how many it has."""
    p_work = work + 4 * tl.program_id(0)
    i_request, i_tile, i_head = tl.load(p_work), tl.load(p_work + 1), tl.load(p_work + 2)
    first_row = tl.load(cu_seqlens_q + i_request)
    first_key = tl.load(cu_seqlens_k + i_request)
    n_rows = tl.load(cu_seqlens_q + i_request + 1) - first_row
    n_keys = tl.load(cu_seqlens_k + i_request + 1) - first_key
    return i_tile, i_head, first_row.to(tl.int64), first_key.to(tl.int64), n_rows, n_keys


@triton.jit
def load(p, row, i_head, stride_token, stride_head, m_row, D: tl.constexpr, WIDTH: tl.constexpr):
    """Load rows of one head, [rows, WIDTH], and zeros outside the mask and beyond D channels."""
    p_rows = (p + row * stride_token + i_head * stride_head)[:, None] + tl.arange(0, WIDTH)[None, :]
    return tl.load(p_rows, mask=in_head(m_row, D, WIDTH), other=0.0)


@triton.jit
def store(p, b, row, m_row, D: tl.constexpr, WIDTH: tl.constexpr):
    """Round and store rows of heads of a contiguous tensor, [rows, WIDTH], up to channel D."""
    p_rows = p + (row * D)[:, None] + tl.arange(0, WIDTH)[None, :]
    tl.store(p_rows, b.to(p.dtype.element_ty), mask=in_head(m_row, D, WIDTH))


@triton.jit
def probabilities(b_s, b_lse2, m_seen, scale_log2):
    """Return P from scores and lse2; 0 for unseen keys, since lse2 may be -inf there."""
    shift = tl.where(b_lse2 == float("-inf"), 0.0, b_lse2)
    return tl.where(m_seen, tl.exp2(b_s * scale_log2 - shift), 0.0)


@triton.jit
def score_gradients(b_dp, b_p, b_delta):
    """Return dS from dP, P and delta."""
    return b_p * (b_dp - b_delta)


@triton.jit
def load_facts(lse2, row_delta, row, head, q_heads, m_row):
    """Load lse2 and delta of rows of one head."""
    o_row = row * q_heads + head
    b_lse2 = tl.load(lse2 + o_row, mask=m_row, other=0.0)
    return b_lse2, tl.load(row_delta + o_row, mask=m_row, other=0.0)


@triton.jit
def delta(
    out,  # [total, q_heads, D_V]
    dout,
    row_delta,  # [total, q_heads]
    out_stride_token,
    out_stride_head,
    dout_stride_token,
    dout_stride_head,
    total,
    q_heads,
    D_V: tl.constexpr,
    WIDTH_V: tl.constexpr,
    ROWS: tl.constexpr,
):
    """One program: the sum of out dout of ROWS tokens of one head."""
    o_row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    i_head = tl.program_id(1).to(tl.int64)
    m_row = o_row < total
    b_out = load(out, o_row, i_head, out_stride_token, out_stride_head, m_row, D_V, WIDTH_V)
    b_dout = load(dout, o_row, i_head, dout_stride_token, dout_stride_head, m_row, D_V, WIDTH_V)
    b_delta = tl.sum(b_out.to(tl.float32) * b_dout.to(tl.float32), axis=1)
    tl.store(row_delta + o_row * q_heads + i_head, b_delta, mask=m_row)


@triton.jit
def keys(
    q,  # [total_q, q_heads, D]
    k,  # [total_k, kv_heads, D]
    v,  # [total_k, kv_heads, D_V]
    dout,  # [total_q, q_heads, D_V]
    lse2,  # [total_q, q_heads], base 2
    row_delta,  # [total_q, q_heads]
    cu_seqlens_q,  # [batch + 1]
    cu_seqlens_k,
    work,  # [blocks, 4]: request, key tile, KV head
    dk,  # as k, contiguous
    dv,  # as v, contiguous
    q_stride_token, q_stride_head, k_stride_token, k_stride_head,
    v_stride_token, v_stride_head, dout_stride_token, dout_stride_head,
    q_heads, group: tl.constexpr, scale, scale_log2,
    D: tl.constexpr, WIDTH: tl.constexpr, D_V: tl.constexpr, WIDTH_V: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
    CAUSAL: tl.constexpr, TENSOR_CORES: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """One program: dK and dV of KEYS keys of one KV head, over all rows that see them."""
    i_tile, i_kv, first_row, first_key, n_rows, n_keys = place(work, cu_seqlens_q, cu_seqlens_k)
    # Without tensor cores, operands are fp32. UPCAST: the interpreter's bf16 arithmetic is wrong.
    WIDE: tl.constexpr = UPCAST or not TENSOR_CORES
    kind = tl.float32 if WIDE else k.dtype.element_ty
    o_key = i_tile * KEYS + tl.arange(0, KEYS)
    m_key = o_key < n_keys
    key = first_key + o_key
    i_kv = i_kv.to(tl.int64)
    b_k = load(k, key, i_kv, k_stride_token, k_stride_head, m_key, D, WIDTH).to(kind)
    b_v = load(v, key, i_kv, v_stride_token, v_stride_head, m_key, D_V, WIDTH_V).to(kind)
    b_dk = tl.zeros([KEYS, WIDTH], tl.float32)
    b_dv = tl.zeros([KEYS, WIDTH_V], tl.float32)
    past = n_keys - n_rows  # keys before the causal row 0's own
    first = 0
    if CAUSAL:
        first = tl.maximum(0, i_tile * KEYS - past) // ROWS * ROWS
    for member in range(0, group):
        head = i_kv * group + member
        for start in tl.range(first, n_rows, ROWS):
            o_row = start + tl.arange(0, ROWS)
            m_row = o_row < n_rows
            row = first_row + o_row
            b_q = load(q, row, head, q_stride_token, q_stride_head, m_row, D, WIDTH).to(kind)
            b_dout = load(
                dout, row, head, dout_stride_token, dout_stride_head, m_row, D_V, WIDTH_V
            ).to(kind)
            b_lse2, b_delta = load_facts(lse2, row_delta, row, head, q_heads, m_row)
            m_seen = m_key[:, None] & m_row[None, :]
            if CAUSAL:
                m_seen = m_seen & (o_key[:, None] <= past + o_row[None, :])
            # [KEYS, ROWS] fp32
            b_s = tl.dot(b_k, tl.trans(b_q), input_precision="ieee")
            b_p = probabilities(b_s, b_lse2[None, :], m_seen, scale_log2)
            b_dv = tl.dot(b_p.to(kind), b_dout, acc=b_dv, input_precision="ieee")
            b_dp = tl.dot(b_v, tl.trans(b_dout), input_precision="ieee")
            b_ds = score_gradients(b_dp, b_p, b_delta[None, :])
            b_dk = tl.dot(b_ds.to(kind), b_q, acc=b_dk, input_precision="ieee")
    row = key * (q_heads // group) + i_kv
    store(dk, b_dk * scale, row, m_key, D, WIDTH)
    store(dv, b_dv, row, m_key, D_V, WIDTH_V)


@triton.jit
def rows(
    q,
    k,
    v,
    dout,
    lse2,
    row_delta,
    cu_seqlens_q,
    cu_seqlens_k,
    work,  # [blocks, 4]: request, row tile, query head
    dq,  # as q, contiguous
    q_stride_token, q_stride_head, k_stride_token, k_stride_head,
    v_stride_token, v_stride_head, dout_stride_token, dout_stride_head,
    q_heads, group: tl.constexpr, scale, scale_log2,
    D: tl.constexpr, WIDTH: tl.constexpr, D_V: tl.constexpr, WIDTH_V: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
    CAUSAL: tl.constexpr, TENSOR_CORES: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """One program: dq of ROWS rows of one query head, over all keys that they see."""
    i_tile, i_head, first_row, first_key, n_rows, n_keys = place(work, cu_seqlens_q, cu_seqlens_k)
    # Without tensor cores, operands are fp32. UPCAST: the interpreter's bf16 arithmetic is wrong.
    WIDE: tl.constexpr = UPCAST or not TENSOR_CORES
    kind = tl.float32 if WIDE else k.dtype.element_ty
    o_row = i_tile * ROWS + tl.arange(0, ROWS)
    m_row = o_row < n_rows
    row = first_row + o_row
    head = i_head.to(tl.int64)
    i_kv = head // group
    b_q = load(q, row, head, q_stride_token, q_stride_head, m_row, D, WIDTH).to(kind)
    b_dout = load(dout, row, head, dout_stride_token, dout_stride_head, m_row, D_V, WIDTH_V).to(
        kind
    )
    b_lse2, b_delta = load_facts(lse2, row_delta, row, head, q_heads, m_row)
    b_dq = tl.zeros([ROWS, WIDTH], tl.float32)
    past = n_keys - n_rows
    end = n_keys
    if CAUSAL:
        end = tl.minimum(n_keys, tl.maximum(0, past + tl.minimum(n_rows, (i_tile + 1) * ROWS)))
    for start in tl.range(0, end, KEYS):
        o_key = start + tl.arange(0, KEYS)
        m_key = o_key < n_keys
        key = first_key + o_key
        b_k = load(k, key, i_kv, k_stride_token, k_stride_head, m_key, D, WIDTH).to(kind)
        b_v = load(v, key, i_kv, v_stride_token, v_stride_head, m_key, D_V, WIDTH_V).to(kind)
        m_seen = m_row[:, None] & m_key[None, :]
        if CAUSAL:
            m_seen = m_seen & (o_key[None, :] <= past + o_row[:, None])
        # [ROWS, KEYS] fp32
        b_s = tl.dot(b_q, tl.trans(b_k), input_precision="ieee")
        b_p = probabilities(b_s, b_lse2[:, None], m_seen, scale_log2)
        b_dp = tl.dot(b_dout, tl.trans(b_v), input_precision="ieee")
        b_ds = score_gradients(b_dp, b_p, b_delta[:, None])
        b_dq = tl.dot(b_ds.to(kind), b_k, acc=b_dq, input_precision="ieee")
    store(dq, b_dq * scale, row * q_heads + head, m_row, D, WIDTH)
