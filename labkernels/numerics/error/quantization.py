"""What storing Q, K and V in a narrow format does to the output, predicted from the numbers stored.

A number x with a scale s is stored as the format's nearest number to x / s. Its error is taken as
random and uniform in half a spacing, of the variance (s ulp(x / s))^2 / 12. The output depends on K
and Q through the scores, to first order: an error d_j of score j changes o by p_j d_j (v_j - o).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from labkernels import formats
from labkernels.numerics import rounding
from labkernels.numerics.arrays import Array, namespace
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.truth.rows import Rows
from labkernels.units import LN_2, require_choice

OPERANDS = ("q", "k", "v")


@dataclass(frozen=True)
class Stored:
    """A format in which Q, K or V is stored, and the scales by which it is divided before.

    Shapes: scale a number, or one for each head, [Hq] of q and [Hkv] of k and v, or of k and v one
    for each page, [pages, 1, Hkv], or slot, [pages, page_size, Hkv].
    """

    fmt: str
    scale: Array | float = 1.0

    def rounded(self, x: Array) -> np.ndarray:
        """Return the numbers that x is stored as. Shapes and units: as x, [..., heads, D].

        >>> Stored("e4m3", 2.0).rounded(np.array([[2.3]])).tolist()  # 1.15 becomes 1.125
        [[2.25]]
        """
        scale = np.asarray(self.scale, np.float64)[..., None]
        found: np.ndarray = rounding.round_to(np.asarray(x, np.float64) / scale, self.fmt) * scale
        return found

    def variance(self, x: Array) -> np.ndarray:
        """Return the variance of storing x; where x is clipped or becomes 0, its loss is squared.

        Shapes: x [..., heads, D], and the result. Units: the square of x's.

        >>> one = np.array([[1.0]])
        >>> bool(Stored("e4m3").variance(one) == (1 / 8) ** 2 / 12)
        True
        """
        scale = np.asarray(self.scale, np.float64)[..., None]
        scaled = np.asarray(x, np.float64) / scale
        beyond = np.abs(scaled) - formats.named(self.fmt).max
        lost = np.abs(scaled) <= formats.named(self.fmt).smallest_subnormal / 2  # it becomes 0
        random = np.where(lost, scaled**2, rounding.quantum(scaled, self.fmt) ** 2 / 12)
        found: np.ndarray = np.where(beyond > 0, beyond**2, random) * scale**2
        return found


def mean_squares(problem: Problem, stored: Mapping[str, Stored]) -> dict[str, np.ndarray]:
    """Return the mean square of the error that storing each operand of a problem gives its output.

    problem: with Q, K and V as they are before they are stored. stored: by operand, "q", "k", "v".
    The mean square of a kernel's whole error is the sum of these and of the square of
    `sigma.sigma`, which knows the rounding of P by its policy.
    Shapes: [total_q, Hq, Dv] float64 each, in the order of `stored`.
    Error: 10 % in the RMSE of a head or sample of a thousand elements with a hundred keys that
    share the weight; where one key has most of it, of a row one error decides, and only the mean of
    many rows is known.
    Raises: ValueError naming an operand that is none.

    >>> q, k, v = np.ones((3, 1, 1, 1, 8))  # one key: only its value counts
    >>> stored = {"k": Stored("e4m3"), "v": Stored("e4m3")}
    >>> found = mean_squares(Problem.dense(q, k, v, scale=1.0), stored)
    >>> [round(float(x[0, 0, 0] ** 0.5), 4) for x in found.values()]
    [0.0, 0.0361]
    """
    for name in stored:
        require_choice("operand", name, OPERANDS)
    problem = problem.in_numpy()
    arrays = {"q": problem.q, "k": problem.k_pool, "v": problem.v_pool}
    of = {name: how.variance(arrays[name]) for name, how in stored.items()}
    # The same problem with variances, and with errors of V, in place of numbers: their blocks have
    # the same places.
    twin = replace(problem, k_pool=of.get("k", problem.k_pool), v_pool=of.get("v", problem.v_pool))
    errors = replace(problem, v_pool=_errors(problem.v_pool, stored.get("v")))
    found = {name: problem.zeros(*problem.out_shape) for name in stored}
    blocks = zip(problem.row_blocks(), twin.row_blocks(), errors.row_blocks(), strict=True)
    for rows, others, lost in blocks:
        for name, target in found.items():
            of_rows = _of_query(rows, of["q"]) if name == "q" else _of_keys(rows, others, name)
            of_rows = of_rows + _of_means(lost) if name == "v" else of_rows
            rows.put(target, np.maximum(of_rows, 0.0))
    return found


def _errors(v: Array, stored: Stored | None) -> np.ndarray:
    return v if stored is None else stored.rounded(v) - v


def _of_means(errors: Rows) -> np.ndarray:
    """Return the square of the mean error of V's channels, less what chance gives: [Hkv, 1, Dv].

    V whose numbers lie in a few spacings errs by some mean, which no sum over keys takes out.
    """
    sums = [np.stack([e.sum(1), (e**2).sum(1)]) for e in (b.v for b in errors.blocks())]
    mean, square = sum(sums) / errors.keys
    chance = (square - mean**2) / (errors.keys - 1) if errors.keys > 1 else mean**2
    found: np.ndarray = mean**2 - chance
    return found[:, None]


def _of_keys(rows: Rows, others: Rows, name: str) -> np.ndarray:
    """Return the variance from K or V; others have variances in their place: [Hkv, R, Dv]."""
    total: Array | float = 0.0
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


def _of_query(rows: Rows, variance: Array) -> np.ndarray:
    """Return the variance from Q, of which one error moves the scores of all keys: [Hkv, R, Dv]."""
    covariance: Array | float = 0.0
    for block, _, weights in rows.weighted_blocks():
        p = weights / rows.softmax.divisor * block.steepness
        covariance = covariance + np.einsum("hrn,hnd,hne->hrde", p, block.k, block.v, optimize=True)
        mean = np.einsum("hrn,hnd->hrd", p, block.k)
        covariance = covariance - mean[..., None] * rows.o[:, :, None]
    found: np.ndarray = np.einsum(
        "hrd,hrde->hre", rows.of(variance) * rows.problem.scale**2, np.square(covariance)
    )
    return found


def rotated(*tensors: Array, seed: int = 0) -> tuple[Array, ...]:
    """Return tensors whose last axis is turned by a Hadamard matrix with random signs.

    Q and K that are turned alike have the products of before, and each channel of the result mixes
    all channels, so that one large channel is shared among all of them. NumPy or torch.
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
    signs = 1 - 2 * np.random.default_rng(seed).integers(0, 2, channels)
    turn = signs[:, None] * turn / math.sqrt(channels)

    def turned(x: Array) -> Array:
        xp = namespace(x)
        if xp is np:
            return x @ turn
        return (x.double() @ xp.asarray(turn, device=x.device)).to(x.dtype)

    return tuple(turned(x) for x in tensors)
