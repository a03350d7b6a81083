"""Attention in float64: the truth with which kernels are compared."""

import numpy as np

from labkernels.numerics.arrays import Array, moved
from labkernels.numerics.truth import online_softmax
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.truth.threads import over_rows
from labkernels.units import LOG2_E


def attention_float64(
    q: Array, k: Array, v: Array, *, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the output and the base-2 log-sum-exp of softmax(scale q k^T) v.

    Shapes: q [..., M, D], k [..., N, D], v [..., N, Dv] -> o [..., M, Dv], lse2 [..., M].
    Error: float64 rounding, about 1e-15 relative to sum p |v|. No key: o = 0, lse2 = -inf.

    >>> q, k, v = np.zeros((1, 4)), np.zeros((2, 4)), np.array([[1.0], [3.0]])
    >>> out, lse2 = attention_float64(q, k, v, scale=0.5)
    >>> out, lse2  # two keys of equal weight
    (array([[2.]]), array([1.]))
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


def lse2_without_keys(problem: Problem) -> Array:
    """Return the lse2 that each row would have without keys: of its sink alone, or else -inf."""
    lse2 = problem.zeros(*problem.q.shape[:2])
    if problem.variant is None or problem.variant.sinks is None:
        return lse2 - np.inf
    return lse2 + moved(np.asarray(problem.variant.sinks, np.float64) * LOG2_E, lse2)


def attention(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Return the output and the base-2 log-sum-exp of any problem, computed block by block.

    Shapes: o [total_q, Hq, Dv], lse2 [total_q, Hq]. Slots that no request owns are never read.
    Error: as attention_float64.
    """
    o = problem.zeros(*problem.out_shape)
    lse2 = lse2_without_keys(problem)
    for rows, (of_o, of_lse2) in over_rows(problem, lambda rows: (rows.o, rows.softmax.lse2)):
        rows.put(o, of_o)
        rows.put(lse2, of_lse2)
    return o, lse2
