"""MLA decode in Triton: tensor cores on (tl.dot) or off (fp32 FMA) from one source.

A latent row is loaded once and serves as key and value. Names as in packed_gqa/triton_rows.py.
"""

import triton
import triton.language as tl

from labkernels.cuda.triton_online_softmax import no_keys, rescale_rows, update
from labkernels.kernels.packed_gqa.triton_rows import block_rows, store


@triton.jit
def consume(
    b_o,
    b_m,
    b_l,
    b_q,
    b_q_pe,
    ckv,
    kpe,
    pages,
    ckv_stride_page,
    ckv_stride_token,
    kpe_stride_page,
    kpe_stride_token,
    page_size,
    first,
    end,
    full,
    limit,
    scale_log2,
    D: tl.constexpr,
    D_PE: tl.constexpr,
    KEYS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Add keys first to end - 1 to the State; row i sees keys below limit[i]."""
    o_key = tl.arange(0, KEYS)
    for start in tl.range(first, end, KEYS):
        key = start + o_key
        m_key = key < end
        slot = key // page_size
        page = tl.load(pages + slot, mask=m_key, other=0).to(tl.int64)
        token = (key - slot * page_size).to(tl.int64)
        # keys past the last arrive as zeros: a P of zero times a stale NaN would be NaN
        p_ckv = (ckv + page * ckv_stride_page + token * ckv_stride_token)[:, None]
        p_kpe = (kpe + page * kpe_stride_page + token * kpe_stride_token)[:, None]
        b_ckv = tl.load(p_ckv + tl.arange(0, D)[None, :], mask=m_key[:, None], other=0.0)
        b_kpe = tl.load(p_kpe + tl.arange(0, D_PE)[None, :], mask=m_key[:, None], other=0.0)
        if WIDE:
            b_ckv, b_kpe = b_ckv.to(tl.float32), b_kpe.to(tl.float32)
        # [ROWS, KEYS] fp32
        b_s = tl.dot(b_q, tl.trans(b_ckv), input_precision="ieee")
        b_s = tl.dot(b_q_pe, tl.trans(b_kpe), acc=b_s, input_precision="ieee")
        if start >= full:  # in earlier steps every row sees every key
            b_s = tl.where(key[None, :] < limit[:, None], b_s, float("-inf"))
        b_p, b_m, b_l, rescale = update(b_s, b_m, b_l, scale_log2)
        b_o = rescale_rows(b_o, rescale)
        b_o = tl.dot(b_p.to(b_ckv.dtype), b_ckv, acc=b_o, input_precision="ieee")
    return b_o, b_m, b_l


@triton.jit
def mla(
    q_nope,  # [total, heads, D]
    q_pe,  # [total, heads, D_PE]
    ckv,  # [pages, page_size, D]
    kpe,  # [pages, page_size, D_PE]
    cu_seqlens_q,  # [batch + 1]
    page_table,  # [batch, max_pages]
    kv_len,  # [batch]
    work,  # [blocks, 4], of KV head 0
    out,  # [total, heads, D]
    lse2,  # [total, heads], base 2
    partial_o,  # [total, heads, splits, D], not yet divided by l
    partial_m, partial_l,  # [total, heads, splits]; m in log2 units
    q_nope_stride_token, q_nope_stride_head, q_pe_stride_token, q_pe_stride_head,
    ckv_stride_page, ckv_stride_token, kpe_stride_page, kpe_stride_token,
    page_table_stride, page_size,
    q_heads, group: tl.constexpr, keys_per_split, splits, scale_log2,
    D: tl.constexpr, D_PE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    CAUSAL: tl.constexpr, TENSOR_CORES: tl.constexpr, UPCAST: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """One program: ROWS rows of one request, over one split of its keys."""
    (
        i_request, _, i_split, token, o_token, head, m_row,
        _, _, limit, least, most,
    ) = block_rows(
        work, cu_seqlens_q, cu_seqlens_q, kv_len, group, ROWS, CAUSAL, True
    )  # fmt: skip
    first = i_split * keys_per_split
    end = tl.minimum(first + keys_per_split, most)
    full = tl.minimum(least, end) - KEYS + 1  # a step that begins below it needs no mask
    # Without tensor cores, operands are fp32 and products "ieee". UPCAST: the interpreter's bf16
    # arithmetic is wrong.
    WIDE: tl.constexpr = UPCAST or not TENSOR_CORES
    row = token.to(tl.int64) + o_token
    head_64 = head.to(tl.int64)
    p_nope = (q_nope + row * q_nope_stride_token + head_64 * q_nope_stride_head)[:, None]
    p_pe = (q_pe + row * q_pe_stride_token + head_64 * q_pe_stride_head)[:, None]
    b_q = tl.load(p_nope + tl.arange(0, D)[None, :], mask=m_row[:, None], other=0.0)
    b_q_pe = tl.load(p_pe + tl.arange(0, D_PE)[None, :], mask=m_row[:, None], other=0.0)
    if WIDE:
        b_q, b_q_pe = b_q.to(tl.float32), b_q_pe.to(tl.float32)
    b_m, b_l, b_o = no_keys(ROWS, D)
    b_o, b_m, b_l = consume(
        b_o, b_m, b_l, b_q, b_q_pe, ckv, kpe,
        page_table + i_request.to(tl.int64) * page_table_stride,
        ckv_stride_page, ckv_stride_token, kpe_stride_page, kpe_stride_token, page_size,
        first, end, full, tl.minimum(limit, end), scale_log2, D, D_PE, KEYS, WIDE,
    )  # fmt: skip
    store(out, lse2, partial_o, partial_m, partial_l, b_o, b_m, b_l,
          token, o_token * q_heads + head, m_row, i_split, splits, q_heads, D, SPLIT)  # fmt: skip
