"""Attention in float64: the truth that kernels are measured against."""

from collections.abc import Iterator

import numpy as np

from labkernels.numerics import online_softmax

LOG2_E = 1.4426950408889634
BLOCK_KEYS = 2048


def attention_float64(q, k, v, *, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Output and base-2 log-sum-exp of softmax(scale q k^T) v.

    Shapes: q [..., M, D], k [..., N, D], v [..., N, Dv] -> o [..., M, Dv], lse2 [..., M].
    Error: float64 rounding, about 1e-15 relative to sum p |v|. No key: o = 0, lse2 = -inf.
    """
    q, k, v = (np.asarray(x, dtype=np.float64) for x in (q, k, v))
    if q.ndim < 2 or k.ndim < 2 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError(
            f"q {q.shape}, k {k.shape}, v {v.shape}, allowed: [..., M, D], [..., N, D], "
            "[..., N, Dv]"
        )
    scores_log2 = (q * (scale * LOG2_E)) @ np.swapaxes(k, -1, -2)
    state = online_softmax.empty(scores_log2.shape[:-1], v.shape[-1])
    return online_softmax.finalize(online_softmax.update(state, scores_log2, v))


def decode_float64(
    q, k_pool, v_pool, page_table, kv_lens, *, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """Output and lse2 of one query token a request over a paged cache, block by block.

    Shapes: q [B, Hq, D]; pools [pages, page_size, Hkv, D]; page_table [B, max_pages]; kv_lens [B]
    -> o [B, Hq, D], lse2 [B, Hq]. Slots that no request owns are never read.
    Raises: ValueError where shapes disagree or a length or page number is out of range.
    """
    check_decode(q, k_pool, v_pool, page_table, kv_lens)
    batch, q_heads, _ = q.shape
    o = np.zeros((batch, q_heads, v_pool.shape[-1]))
    lse2 = np.full((batch, q_heads), -np.inf)
    for b in range(batch):
        state = request_state(q, k_pool, v_pool, page_table, kv_lens, b, scale=scale)
        o_b, lse2_b = online_softmax.finalize(state)
        o[b], lse2[b] = o_b.reshape(q_heads, -1), lse2_b.reshape(q_heads)
    return o, lse2


def request_state(
    q, k_pool, v_pool, page_table, kv_lens, b: int, *, scale: float
) -> online_softmax.State:
    """The finished float64 State of request b, rows as [Hkv, group]."""
    kv_heads = k_pool.shape[2]
    q_log2 = grouped_queries(q[b], kv_heads) * (scale * LOG2_E)
    state = online_softmax.empty(q_log2.shape[:2], v_pool.shape[-1])
    for k, v in key_blocks(k_pool, v_pool, page_table[b], int(kv_lens[b])):
        state = online_softmax.update(state, q_log2 @ np.swapaxes(k, 1, 2), v)
    return state


def grouped_queries(q_of_request, kv_heads: int) -> np.ndarray:
    """Query heads that share a KV head side by side: [Hq, D] as float64 [Hkv, group, D]."""
    q_heads, head_dim = q_of_request.shape
    return np.asarray(q_of_request, np.float64).reshape(kv_heads, q_heads // kv_heads, head_dim)


def key_blocks(
    k_pool, v_pool, pages, kv_len: int, *, block_keys: int = BLOCK_KEYS
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The owned keys and values of one request, in key order, as float64 blocks.

    Shapes: k [Hkv, n, D], v [Hkv, n, Dv] with n at most block_keys (or one page, if longer).
    """
    page_size = k_pool.shape[1]
    pages_per_block = max(1, block_keys // page_size)
    for first in range(0, -(-kv_len // page_size), pages_per_block):
        numbers = np.asarray(pages[first : first + pages_per_block], dtype=np.int64)
        n_keys = min(kv_len - first * page_size, pages_per_block * page_size)
        numbers = numbers[: -(-n_keys // page_size)]
        yield _gather(k_pool, numbers, n_keys), _gather(v_pool, numbers, n_keys)


def _gather(pool, numbers: np.ndarray, n_keys: int) -> np.ndarray:
    rows = pool[numbers].reshape(-1, *pool.shape[2:])[:n_keys]
    return np.ascontiguousarray(rows.transpose(1, 0, 2), dtype=np.float64)


def check_decode(q, k_pool, v_pool, page_table, kv_lens) -> None:
    """Raises ValueError, naming the argument, where a paged decode problem is not well formed."""
    for name, array, ndim in (
        ("q", q, 3),
        ("k_pool", k_pool, 4),
        ("v_pool", v_pool, 4),
        ("page_table", page_table, 2),
        ("kv_lens", kv_lens, 1),
    ):
        if np.ndim(array) != ndim:
            raise ValueError(f"{name}.ndim = {np.ndim(array)}, allowed: {ndim}")
    batch, q_heads, head_dim = q.shape
    if k_pool.shape[:3] != v_pool.shape[:3]:
        raise ValueError(f"v_pool.shape = {v_pool.shape}, allowed: {k_pool.shape[:3]} and any Dv")
    if k_pool.shape[3] != head_dim:
        raise ValueError(f"k_pool head_dim = {k_pool.shape[3]}, allowed: that of q, {head_dim}")
    if k_pool.shape[2] == 0 or q_heads % k_pool.shape[2]:
        raise ValueError(f"q heads = {q_heads}, allowed: multiples of {k_pool.shape[2]} KV heads")
    if len(page_table) != batch or len(kv_lens) != batch:
        raise ValueError(
            f"rows of page_table, kv_lens = {len(page_table)}, {len(kv_lens)}, allowed: {batch}"
        )
    n_pages, page_size = k_pool.shape[:2]
    capacity = page_table.shape[1] * page_size
    for b, (pages, kv_len) in enumerate(zip(page_table, kv_lens, strict=True)):
        if not 0 <= kv_len <= capacity:
            raise ValueError(f"kv_lens[{b}] = {kv_len}, allowed: 0 to {capacity}")
        owned = np.asarray(pages[: -(-int(kv_len) // page_size)])
        if owned.size and not (owned.min() >= 0 and owned.max() < n_pages):
            raise ValueError(f"page_table[{b}] = {owned}, allowed: 0 to {n_pages - 1}")
