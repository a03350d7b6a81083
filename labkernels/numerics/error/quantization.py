"""What storing Q, K and V in a narrow format does to the output, before and after it is done.

A number x with a scale s is stored as the format's nearest number to x / s. `mean_squares` knows
spacings alone: each error is taken as random and uniform in half a spacing, of the variance
(s ulp(x / s))^2 / 12, and as independent of all others. `first_order` takes the errors made, which
are not independent where numbers are equal. The output depends on K and Q through the scores, to
first order in both: an error d_j of score j changes o by p_j d_j (v_j - o).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from labkernels import formats
from labkernels.numerics import rounding
from labkernels.numerics.arrays import ZERO, Array, float64, moved, namespace
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.truth.rows import Rows
from labkernels.units import LN_2, require_choice

OPERANDS = ("q", "k", "v")


@dataclass(frozen=True)
class Stored:
    """A format in which Q, K or V is stored, and the scales by which it is divided before.

    Shapes: scale a number, or one for each head, [Hq] of q and [Hkv] of k and v.
    """

    fmt: str
    scale: Array | float = 1.0

    def rounded(self, x: Array) -> np.ndarray:
        """Return the numbers that x is stored as. Shapes and units: as x, [..., heads, D].

        >>> Stored("e4m3", 2.0).rounded(np.array([[2.3]])).tolist()  # 1.15 becomes 1.125
        [[2.25]]
        """
        scaled, scale = self._scaled(x)
        return rounding.round_to(scaled, self.fmt) * scale

    def variance(self, x: Array) -> np.ndarray:
        """Return the variance of storing x; where x is clipped or becomes 0, its loss is squared.

        Shapes: x [..., heads, D], and the result. Units: the square of x's.

        >>> bool(Stored("e4m3").variance(np.ones((1, 1))) == (1 / 8) ** 2 / 12)
        True
        """
        scaled, scale = self._scaled(x)
        beyond = np.abs(scaled) - formats.named(self.fmt).max
        lost = np.abs(scaled) <= formats.named(self.fmt).smallest_subnormal / 2  # it becomes 0
        random = np.where(lost, scaled**2, rounding.quantum(scaled, self.fmt) ** 2 / 12)
        found: np.ndarray = np.where(beyond > 0, beyond**2, random) * scale**2
        return found

    def _scaled(self, x: Array) -> tuple[np.ndarray, np.ndarray]:
        scale = np.asarray(self.scale, np.float64)[..., None]
        return np.asarray(x, np.float64) / scale, scale


def mean_squares(problem: Problem, stored: Mapping[str, Stored]) -> dict[str, np.ndarray]:
    """Return the mean square of the error that storing each operand should give the output.

    problem: with Q, K and V as they are before they are stored. stored: by operand, "q", "k", "v".
    To a kernel's whole error, the square of `sigma.sigma` is added, which has P's rounding.
    Shapes: [total_q, Hq, Dv] float64 each.
    Error: 10 % in the RMSE of a head or sample of a thousand elements where a hundred keys share
    the weight and few numbers are equal. Where one key has most of it, one error decides a row, and
    only a mean is known; errors of equal numbers add up, to more than this.
    Raises: ValueError naming an operand that is none.

    >>> q, k, v = np.ones((3, 1, 1, 1, 8))  # one key: only its value counts
    >>> stored = {"k": Stored("e4m3"), "v": Stored("e4m3")}
    >>> found = mean_squares(Problem.dense(q, k, v, scale=1.0), stored)
    >>> [round(float(x[0, 0, 0] ** 0.5), 4) for x in found.values()]
    [0.0, 0.0361]
    """
    found = _by_operand(problem, stored, Stored.variance, _variance)
    return {name: np.maximum(x, 0.0) for name, x in found.items()}


def first_order(problem: Problem, stored: Mapping[str, Stored]) -> dict[str, np.ndarray]:
    """Return the error that storing each operand gives the output, from its numbers' own errors.

    Errors of operands add up, with their signs.
    Shapes: [total_q, Hq, Dv] float64 each.
    Error: none from V. From Q and K, whose second order is left out, up to 10 % of the RMSE of a
    head or sample where its scores err by 0.2 in RMS, and 30 % where they err by 0.3.
    Raises: ValueError naming an operand that is none.

    >>> q, k, v = np.full((3, 1, 1, 1, 8), 1.05)  # becomes 1
    >>> found = first_order(Problem.dense(q, k, v, scale=1.0), {"v": Stored("e4m3")})
    >>> round(float(found["v"][0, 0, 0]), 4)
    -0.05
    """
    return _by_operand(problem, stored, lambda of, x: of.rounded(x) - x, _change)


def _by_operand(
    problem: Problem,
    stored: Mapping[str, Stored],
    number: Callable[[Stored, Array], np.ndarray],
    law: Callable[[Rows, Rows, str], np.ndarray],
) -> dict[str, np.ndarray]:
    """Return what a law makes of rows beside others, in which numbers stand for the operands."""
    for name in stored:
        require_choice("operand", name, OPERANDS)
    problem = problem.in_numpy()
    of = {"q": problem.q, "k": problem.k_pool, "v": problem.v_pool}
    of |= {name: number(stored[name], of[name]) for name in stored}
    others = replace(problem, q=of["q"], k_pool=of["k"], v_pool=of["v"])
    found = {name: problem.zeros(*problem.out_shape) for name in stored}
    for rows, beside in zip(problem.row_blocks(), others.row_blocks(), strict=True):
        for name, target in found.items():
            rows.put(target, law(rows, beside, name))
    return found


def _change(rows: Rows, errors: Rows, name: str) -> np.ndarray:
    """Return what the errors of an operand, in its place, change: [Hkv, R, Dv]."""
    total = ZERO
    for (block, _, weights), error in zip(rows.weighted_blocks(), errors.blocks(), strict=True):
        p = weights / rows.softmax.divisor
        if name == "v":
            total = total + p @ error.v
            continue
        q, k = (errors.q_log2, block.k) if name == "q" else (rows.q_log2, error.k)
        scores = LN_2 * q @ np.swapaxes(k, 1, 2) * block.steepness
        moved = np.where(p > 0, p * scores, 0.0)
        total = total + moved @ block.v - rows.o * moved.sum(-1, keepdims=True)
    return np.asarray(total)


def _variance(rows: Rows, others: Rows, name: str) -> np.ndarray:
    """Return the variance from an operand; others have variances in its place: [Hkv, R, Dv]."""
    if name == "q":
        return _of_query(rows, others)
    total = ZERO
    for (block, _, weights), other in zip(rows.weighted_blocks(), others.blocks(), strict=True):
        p = weights / rows.softmax.divisor
        if name == "v":
            total = total + p**2 @ other.v
            continue
        scores = (LN_2 * rows.q_log2) ** 2 @ np.swapaxes(other.k, 1, 2) * block.steepness**2
        w = p**2 * np.where(p > 0, scores, 0.0)
        total = total + w @ block.v**2 - 2 * rows.o * (w @ block.v)
        total = total + rows.o**2 * w.sum(-1, keepdims=True)
    return total


def _of_query(rows: Rows, others: Rows) -> np.ndarray:
    """Return the variance from Q, of which one error moves the scores of all keys: [Hkv, R, Dv]."""
    covariance = ZERO
    for block, _, weights in rows.weighted_blocks():
        p = weights / rows.softmax.divisor * block.steepness
        covariance = covariance + np.einsum("hrn,hnd,hne->hrde", p, block.k, block.v, optimize=True)
        mean = np.einsum("hrn,hnd->hrd", p, block.k)
        covariance = covariance - mean[..., None] * rows.o[:, :, None]
    found: np.ndarray = np.einsum(
        "hrd,hrde->hre", rows.of(others.problem.q) * rows.problem.scale**2, np.square(covariance)
    )
    return found


def rotated(*tensors: Array, seed: int = 0) -> tuple[Array, ...]:
    """Return tensors whose last axis is turned by a Hadamard matrix with random signs.

    Q and K that are turned alike keep their products, and a large channel is shared among all.
    Shapes: [..., D] each, D a power of two. Source: FlashAttention-3, "incoherent processing".
    Raises: ValueError where D is no power of two.

    >>> q, k = rotated(np.eye(4)[:1], np.full((1, 4), 2.0))
    >>> np.abs(q).tolist(), (q @ k.T).tolist()
    ([[0.5, 0.5, 0.5, 0.5]], [[2.0]])
    """
    channels = tensors[0].shape[-1]
    if channels & (channels - 1) or not channels:
        raise ValueError(f"channels = {channels}, allowed: a power of two")
    turn = np.ones((1, 1))
    while len(turn) < channels:
        turn = np.block([[turn, turn], [turn, -turn]])
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], channels)
    turn = signs[:, None] * turn / channels**0.5
    return tuple(namespace(x).asarray(float64(x) @ moved(turn, x), dtype=x.dtype) for x in tensors)
