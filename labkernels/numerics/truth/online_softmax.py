"""The online-softmax State (m, l, o): the same names as in CUDA, Triton and the text.

Rows of scores are folded in block by block. States are values: every function returns a new one.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class State:
    """The state of some rows of scores after some of their keys.

    Shapes: m, l [..., rows]; o [..., rows, D].
    Units: m is the largest score in log2 units, l = sum of 2^(s - m), o = sum of 2^(s - m) v.
    """

    m: np.ndarray
    l: np.ndarray
    o: np.ndarray


def empty(
    rows: tuple[int, ...], head_dim: int, *, dtype: type[np.floating[Any]] = np.float64
) -> State:
    """Return the State of rows that have seen no key, the identity of merge: l = 0, o = 0.

    m is the lowest finite number, as in the kernels: masked scores of -inf then weigh 2^-inf = 0.
    """
    return State(
        m=np.full(rows, np.finfo(dtype).min, dtype),
        l=np.zeros(rows, dtype),
        o=np.zeros((*rows, head_dim), dtype),
    )


def update(state: State, scores_log2: np.ndarray, v: np.ndarray) -> State:
    """Add n more keys to the State.

    Shapes: scores_log2 [..., rows, n], -inf where a key is masked; v [..., n, D], finite there.
    Units: scores are in log2 units, that is multiplied by scale * log2(e).
    """
    if scores_log2.shape[-1] == 0:
        return state
    m = np.maximum(state.m, scores_log2.max(axis=-1))
    rescale = _weight(state.m, m)
    p = _weight(scores_log2, m[..., None])
    return State(
        m=m,
        l=rescale * state.l + p.sum(axis=-1),
        o=rescale[..., None] * state.o + p @ v,
    )


def merge(first: State, second: State) -> State:
    """Merge the States of two disjoint sets of keys of the same rows."""
    m = np.maximum(first.m, second.m)
    w1, w2 = _weight(first.m, m), _weight(second.m, m)
    return State(
        m=m,
        l=w1 * first.l + w2 * second.l,
        o=w1[..., None] * first.o + w2[..., None] * second.o,
    )


def finalize(state: State) -> tuple[np.ndarray, np.ndarray]:
    """Return o / l and lse2 = m + log2(l); a row without keys gives o = 0 and lse2 = -inf.

    Shapes: o [..., rows, D]; lse2 [..., rows].
    """
    no_key = state.l == 0
    divisor = np.where(no_key, 1, state.l)
    with np.errstate(divide="ignore"):
        lse2 = np.where(no_key, -np.inf, state.m + np.log2(divisor))
    return state.o / divisor[..., None], lse2.astype(state.m.dtype)


def _weight(x: np.ndarray, m: np.ndarray) -> np.ndarray:
    """Return 2^(x - m)."""
    with np.errstate(invalid="ignore", under="ignore"):  # inf - inf is NaN, which the result keeps
        return np.exp2(x - m)
