"""Prefill in Gluon: Triton's language with explicit layouts, TMA, mbarriers and wgmma.

It takes ragged K and V, and works in the order of prefill_wgmma_basic's plain rung, but all of its
warps ask for tiles and multiply. Names as in triton_prefill: i_ indices of the block's work, o_
offset vectors, m_ masks, p_ pointers, d_ descriptors, b_ block values; layouts are capitals. Gluon
has no interpreter, so this kernel runs only on a GPU.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
)

from labkernels.cuda.triton_online_softmax import LOWEST_SCORE


@gluon.jit
def describe(tensor, first_key, n_keys, i_kv, stride_token, stride_head, b_kv):
    """Make a descriptor of one request's K or V of a KV head, in boxes of the stages of b_kv."""
    p_first = tensor + first_key.to(gl.int64) * stride_token + i_kv.to(gl.int64) * stride_head
    KEYS: gl.constexpr = b_kv.shape[1]
    D: gl.constexpr = b_kv.shape[2]
    return tma.make_tensor_descriptor(
        p_first, [n_keys, D], [stride_token, 1], [KEYS, D], b_kv.layout
    )


@gluon.jit
def ask(d, b_kv, full, stage, key):
    """Ask the TMA for a tile of K or V; keys past the request's last one arrive as zeros."""
    mbarrier.expect(full.index(stage), d.block_type.nbytes)
    tma.async_copy_global_to_shared(d, [key, 0], full.index(stage), b_kv.index(stage))


@gluon.jit
def rings(dtype: gl.constexpr, STAGES: gl.constexpr, KEYS: gl.constexpr, D: gl.constexpr):
    """Make the stages of K and V, and for each stage a barrier that says when it is full."""
    TILE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, D], dtype)
    b_k = gl.allocate_shared_memory(dtype, [STAGES, KEYS, D], TILE)
    b_v = gl.allocate_shared_memory(dtype, [STAGES, KEYS, D], TILE)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(v_full.index(i), count=1)
    fence_async_shared()  # the TMA sees the barriers
    return b_k, b_v, k_full, v_full


@gluon.jit
def rows_of(i_tile, i_kv, group: gl.constexpr, ROWS: gl.constexpr, LAYOUT: gl.constexpr):
    """Return the token and the query head of each row: the heads of a KV head lie side by side."""
    o_row = i_tile * ROWS + gl.arange(0, ROWS, LAYOUT)
    token = o_row // group
    return token, i_kv * group + o_row - token * group


@gluon.jit
def update(b_s, b_m, b_l, scale_log2):
    """Return P of scores [rows, keys], the rows' new m and l, and the factor for O."""
    b_m_new = gl.maximum(b_m, gl.max(b_s, axis=1) * scale_log2)
    rescale = gl.exp2(b_m - b_m_new)
    b_p = gl.exp2(b_s * scale_log2 - b_m_new[:, None])
    return b_p, b_m_new, b_l * rescale + gl.sum(b_p, axis=1), rescale


@gluon.jit
def finalize(m, l):
    """Return 1 / l and the log-sum-exp in base 2; 0 and -inf for a row without keys."""
    empty = l == 0.0
    sums = gl.where(empty, 1.0, l)
    return gl.where(empty, 0.0, 1.0 / sums), gl.where(empty, float("-inf"), m + gl.log2(sums))


@gluon.jit
def consume(q_tile, d_k, d_v, ring, limit, least, most, scale_log2,
            S: gl.constexpr, O: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    """Return O, m and l of the rows over keys below most; row i sees keys below limit[i]."""
    b_k, b_v, k_full, v_full = ring
    ROWS: gl.constexpr = q_tile.shape[0]
    KEYS: gl.constexpr = b_k.shape[1]
    P: gl.constexpr = gl.DotOperandLayout(0, O, k_width=2)  # P in registers, the left operand
    # m in log2 units, [ROWS]; o [ROWS, D]; all fp32
    b_m = gl.full([ROWS], LOWEST_SCORE, gl.float32, gl.SliceLayout(1, S))
    b_l = gl.full([ROWS], 0.0, gl.float32, gl.SliceLayout(1, S))
    b_o = gl.full([ROWS, b_v.shape[2]], 0.0, gl.float32, O)
    for start in range(0, most, KEYS):
        block = start // KEYS
        stage = block % STAGES
        phase = block // STAGES & 1
        mbarrier.wait(k_full.index(stage), phase)
        b_s = gl.full([ROWS, KEYS], 0.0, gl.float32, S)
        b_s = warpgroup_mma(q_tile, b_k.index(stage).permute((1, 0)), b_s, use_acc=False)
        if start + KEYS > least:  # otherwise every row sees all keys of the step
            key = start + gl.arange(0, KEYS, gl.SliceLayout(0, S))
            b_s = gl.where(key[None, :] < limit[:, None], b_s, float("-inf"))
        b_p, b_m, b_l, rescale = update(b_s, b_m, b_l, scale_log2)
        b_o = b_o * gl.convert_layout(rescale, gl.SliceLayout(1, O))[:, None]
        mbarrier.wait(v_full.index(stage), phase)
        b_o = warpgroup_mma(gl.convert_layout(b_p.to(b_v.dtype), P), b_v.index(stage), b_o)
        ahead = start + STAGES * KEYS  # Gluon puts a barrier of the block before each copy
        if ahead < most:
            ask(d_k, b_k, k_full, stage, ahead)
            ask(d_v, b_v, v_full, stage, ahead)
    return b_o, b_m, b_l


@gluon.jit
def lengths_of(i_request, cu_seqlens_q, cu_seqlens_k):
    """Return the request's first token and first key, and how many of each it has."""
    first_token, first_key = gl.load(cu_seqlens_q + i_request), gl.load(cu_seqlens_k + i_request)
    q_len = gl.load(cu_seqlens_q + i_request + 1) - first_token
    n_keys = gl.load(cu_seqlens_k + i_request + 1) - first_key
    return first_token, first_key, q_len, n_keys


@gluon.jit
def limits_of(token, i_tile, q_len, n_keys,
              group: gl.constexpr, CAUSAL: gl.constexpr):  # fmt: skip
    """Return how many keys each row sees, and the least and most that a row of the tile sees."""
    ROWS: gl.constexpr = token.shape[0]
    past = n_keys - q_len  # keys before the causal token 0's own
    limit = gl.full([ROWS], 0, gl.int32, token.type.layout) + n_keys
    least = n_keys
    most = n_keys
    if CAUSAL:
        limit = gl.minimum(n_keys, gl.maximum(0, past + token + 1))
        last_token = gl.minimum(q_len - 1, (i_tile * ROWS + ROWS - 1) // group)
        least = gl.minimum(n_keys, gl.maximum(0, past + i_tile * ROWS // group + 1))
        most = gl.minimum(n_keys, gl.maximum(0, past + last_token + 1))
    return limit, least, most


@gluon.jit
def load_query(q, row, o_head, o_dim, m_row, q_stride_token, q_stride_head):
    """Load the tile of Q into shared memory; rows past the request's last one are zero."""
    dtype: gl.constexpr = q.dtype.element_ty
    ROWS: gl.constexpr = row.shape[0]
    D: gl.constexpr = o_dim.shape[1]
    TILE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, D], dtype)
    o_q = (row * q_stride_token + o_head.to(gl.int64) * q_stride_head)[:, None]
    b_q = gl.load(q + (o_q + o_dim), mask=m_row, other=0.0)
    q_tile = gl.allocate_shared_memory(dtype, [ROWS, D], TILE, b_q)
    fence_async_shared()  # wgmma reads what the threads have written
    return q_tile


@gluon.jit
def prefill(
    q,  # [total, q_heads, D]
    k, v,  # [total, kv_heads, D]
    cu_seqlens_q, cu_seqlens_k,
    work,  # [blocks, 4]: request, query tile, KV head, split
    out,  # [total, q_heads, D], contiguous
    lse2,  # [total, q_heads], base 2
    q_stride_token, q_stride_head, k_stride_token, k_stride_head, v_stride_token, v_stride_head,
    q_heads, group: gl.constexpr, scale_log2,
    D: gl.constexpr, ROWS: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr,
    CAUSAL: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """One program: ROWS rows of one KV head of one request, against all keys that they see."""
    dtype: gl.constexpr = q.dtype.element_ty
    # Layouts of wgmma's accumulators, and of rows in copies: a thread has 8 channels, 16 bytes.
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, KEYS, 16])
    O: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, D, 16])
    LINES: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [num_warps, 1], [1, 0])

    p_work = work + 4 * gl.program_id(0)
    i_request, i_tile, i_kv = gl.load(p_work), gl.load(p_work + 1), gl.load(p_work + 2)
    first_token, first_key, q_len, n_keys = lengths_of(i_request, cu_seqlens_q, cu_seqlens_k)
    token, head = rows_of(i_tile, i_kv, group, ROWS, gl.SliceLayout(1, S))
    limit, least, most = limits_of(token, i_tile, q_len, n_keys, group, CAUSAL)

    ring = rings(dtype, STAGES, KEYS, D)
    b_k, b_v, k_full, v_full = ring
    d_k = describe(k, first_key, n_keys, i_kv, k_stride_token, k_stride_head, b_k)
    d_v = describe(v, first_key, n_keys, i_kv, v_stride_token, v_stride_head, b_v)
    for i in gl.static_range(STAGES):
        if i * KEYS < most:
            ask(d_k, b_k, k_full, i, i * KEYS)
            ask(d_v, b_v, v_full, i, i * KEYS)

    o_token, o_head = rows_of(i_tile, i_kv, group, ROWS, gl.SliceLayout(1, LINES))
    o_dim, m_row = gl.arange(0, D, gl.SliceLayout(0, LINES))[None, :], (o_token < q_len)[:, None]
    row = (first_token + o_token).to(gl.int64)
    q_tile = load_query(q, row, o_head, o_dim, m_row, q_stride_token, q_stride_head)
    b_o, b_m, b_l = consume(q_tile, d_k, d_v, ring, limit, least, most, scale_log2, S, O, STAGES)

    inverse_l, b_lse2 = finalize(b_m, b_l)
    gl.store(lse2 + ((first_token + token).to(gl.int64) * q_heads + head), b_lse2,
             mask=token < q_len)  # fmt: skip
    b_out = (b_o * gl.convert_layout(inverse_l, gl.SliceLayout(1, O))[:, None]).to(dtype)
    gl.store(out + (((row * q_heads + o_head) * D)[:, None] + o_dim),
             gl.convert_layout(b_out, LINES), mask=m_row)  # fmt: skip
