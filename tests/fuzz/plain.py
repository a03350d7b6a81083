"""Attention and its gradients in float64 as in a textbook, with no formula of numerics."""

from collections.abc import Iterator

import numpy as np

from labkernels.numerics.arrays import to_numpy


def attention(problem) -> tuple[np.ndarray, np.ndarray]:
    """Return out and lse2: a softmax over the keys that each query sees."""
    problem = problem.in_numpy()
    out = np.zeros((*problem.q.shape[:2], problem.v_pool.shape[-1]))
    lse2 = np.full(problem.q.shape[:2], -np.inf)
    for row, head, _, k, v in _rows(problem):
        scores = k @ problem.q[row, head] * problem.scale
        weights = np.exp(scores - scores.max())
        out[row, head] = weights @ v / weights.sum()
        lse2[row, head] = (scores.max() + np.log(weights.sum())) / np.log(2)
    return out, lse2


def gradients(given) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return dq, dk and dv of rows whose out and lse2 are given."""
    problem = given.problem.in_numpy()
    rows = (given.dout, given.out, given.lse2)
    dout, out, lse2 = (to_numpy(x).astype(np.float64) for x in rows)
    keys, (heads, channels) = int(np.sum(problem.kv_lens)), problem.k_pool.shape[2:]
    dq = np.zeros(problem.q.shape)
    dk, dv = np.zeros((keys, heads, channels)), np.zeros((keys, heads, dout.shape[2]))
    for row, head, places, k, v in _rows(problem):
        q, gradient = problem.q[row, head], dout[row, head]
        p = np.exp(k @ q * problem.scale - lse2[row, head] * np.log(2))
        ds = p * (v @ gradient - out[row, head] @ gradient) * problem.scale
        dq[row, head] = ds @ k
        dk[places] += np.outer(ds, q)
        dv[places] += np.outer(p, gradient)
    return dq, dk, dv


def _rows(problem) -> Iterator[tuple]:
    """Yield each query row and head that sees keys, with their places, and K and V gathered."""
    q_heads, (_, page_size, kv_heads, _) = problem.q.shape[1], problem.k_pool.shape
    ends, first_key = np.asarray(problem.q_ends), 0
    for request, n_keys in enumerate(np.asarray(problem.kv_lens).tolist()):
        n_rows = int(ends[request + 1] - ends[request])
        for i in range(n_rows):
            seen = max(0, n_keys - n_rows + i + 1) if problem.causal else n_keys
            key = np.arange(seen)
            pages = np.asarray(problem.page_table)[request, key // page_size]
            for head in range(q_heads if seen else 0):
                kv_head = head * kv_heads // q_heads
                at = pages, key % page_size, kv_head
                places = slice(first_key, first_key + seen), kv_head
                k, v = problem.k_pool[at], problem.v_pool[at]
                yield int(ends[request]) + i, head, places, k, v
        first_key += n_keys
