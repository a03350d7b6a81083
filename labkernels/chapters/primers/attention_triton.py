"""The same attention in Triton: a program answers for 16 packed rows of one KV head."""

import triton
import triton.language as tl


# [lab: update]
@triton.jit
def update(b_m, b_l, b_o, b_s, b_v):
    """Fold the scores b_s [ROWS, KEYS] of keys with values b_v [KEYS, D] into the state."""
    m_new = tl.maximum(b_m, tl.max(b_s, axis=1))
    rescale = tl.exp2(b_m - m_new)
    b_p = tl.exp2(b_s - m_new[:, None])
    b_l = b_l * rescale + tl.sum(b_p, axis=1)
    b_o = b_o * rescale[:, None] + tl.dot(b_p, b_v, input_precision="ieee")
    return m_new, b_l, b_o


# [/lab: update]


@triton.jit
def attend(
    q,  # [n_queries, kv_heads * group, D]
    k_pool,  # [pages, page_size, kv_heads, D]
    v_pool,
    page_table,  # [pages of the request]
    out,  # [n_queries, kv_heads * group, D]
    lse2,  # [n_queries, kv_heads * group]
    n_queries,
    group,
    kv_heads,
    kv_len,
    page_size,
    causal,
    scale_log2,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Attend to all keys of the request, for the packed rows of one block and KV head."""
    i_block, i_kv = tl.program_id(0), tl.program_id(1)
    o_row, o_dim, o_key = tl.arange(0, ROWS), tl.arange(0, D), tl.arange(0, KEYS)
    packed = i_block * ROWS + o_row
    token = packed // group
    m_row = token < n_queries
    head = token * kv_heads * group + i_kv * group + packed % group
    b_q = tl.load(q + head[:, None] * D + o_dim[None, :], mask=m_row[:, None], other=0.0)
    seen = tl.where(causal != 0, kv_len - n_queries + token + 1, kv_len)
    b_m = tl.full([ROWS], -3.0e38, tl.float32)
    b_l = tl.zeros([ROWS], tl.float32)
    b_o = tl.zeros([ROWS, D], tl.float32)
    for first in range(0, kv_len, KEYS):
        key = first + o_key
        m_key = key < kv_len
        page = tl.load(page_table + key // page_size, mask=m_key, other=0)
        o_kv = ((page * page_size + key % page_size) * kv_heads + i_kv)[:, None] * D + o_dim[
            None, :
        ]
        b_k = tl.load(k_pool + o_kv, mask=m_key[:, None], other=0.0)
        b_v = tl.load(v_pool + o_kv, mask=m_key[:, None], other=0.0)
        b_s = tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * scale_log2
        b_s = tl.where(key[None, :] < seen[:, None], b_s, float("-inf"))
        b_m, b_l, b_o = update(b_m, b_l, b_o, b_s, b_v)
    tl.store(out + head[:, None] * D + o_dim[None, :], b_o / b_l[:, None], mask=m_row[:, None])
    tl.store(lse2 + head, b_m + tl.log2(b_l), mask=m_row)
