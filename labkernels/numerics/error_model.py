"""What error to expect of a kernel: a standard deviation per element, by its policy."""

import numpy as np

from labkernels import formats
from labkernels.numerics import rounding
from labkernels.numerics.arrays import namespace
from labkernels.numerics.problem import Problem, Rows, weighted_sum
from labkernels.numerics.rounds import Rounds

# spread of the relative error of one exp2 over a binade, about its mean, which cancels in o
EXP2_SPREAD = {"mufu": 2.7e-8, "poly3": 4.6e-5, "poly5": 6.3e-8}

# rms spacing at a low part, uniform in half an ulp of the high part, over u times that half ulp:
# of the numbers below 1, half lie in the topmost binade, and each binade has half the spacing
_LOW_PART = (4 / 7) ** 0.5


def sigma(problem: Problem, rounds: Rounds) -> np.ndarray:
    """Expected standard deviation of out - o: variances of rounding P, exp2 and the store, summed.

    Shapes: [total_q, Hq, Dv] float64; metrics.rms(sigma, by="head") is the RMSE to expect per head.
    Of two possible denominators, the larger. Error: 15 %. With exp2="poly3" and P in fp32 the error
    seen is up to 2 times this, as the rescales share their error among keys, which is not counted.
    Source: uniform rounding errors, ulp^2 / 12 each; the rest as a floor of 2^-22 sum p |v|.
    """
    found = problem.zeros(*problem.out_shape)
    for rows in problem.row_blocks():
        store = rounding.quantum(rows.o, rounds.out_format) ** 2 / 12
        variance = (_internal_variance(rows, rounds) + store) * (rows.n_keys[:, None] > 0)
        rows.put(found, namespace(variance).sqrt(variance))
    return found


def _internal_variance(rows: Rows, rounds: Rounds):
    """Variance before the store. Shapes: [Hkv, R, Dv]."""
    xp = namespace(rows.q_log2)
    o, magnitude, from_p, from_exp2 = rows.o, 0.0, _Squares(), _Squares()
    for block, _, p in rows.weighted_blocks():
        magnitude = magnitude + weighted_sum(p, xp.abs(block.v))
        from_p.add(p_spacing(p, rounds.p_format) ** 2 / 12, block.v)
        from_exp2.add((EXP2_SPREAD[rounds.exp2] * p) ** 2, block.v)
    divisor = rows.softmax.divisor
    kinds = [from_p.about(o * (kind == "rounded")) for kind in rounds.denominators]
    largest = kinds[0] if len(kinds) == 1 else xp.maximum(*kinds)
    variance = (largest + from_exp2.about(o)) / divisor**2
    return variance + (2.0**-22 * magnitude / divisor) ** 2


class _Squares:
    """Sums of weights_j (v_j - x)^2 for any x, without forming the differences."""

    def __init__(self):
        self.weights, self.values, self.squares = 0.0, 0.0, 0.0

    def add(self, weights, v) -> None:
        """Count a block of keys. Shapes: weights [Hkv, R, n], v [Hkv, n, Dv]."""
        self.weights = self.weights + weights.sum(-1)[..., None]
        self.values = self.values + weighted_sum(weights, v)
        self.squares = self.squares + weighted_sum(weights, v**2)

    def about(self, x):
        """The sum about x. Shapes: [Hkv, R, Dv]."""
        total = self.squares - 2 * x * self.values + x**2 * self.weights
        return namespace(total).clip(total, 0.0, None)


def p_spacing(p, p_format: str):
    """Spacing of P's format at p; 0 where p is exact, at the row's maximum (1) and at 0."""
    part = formats.named(p_format.removesuffix("x2"))
    spacing = rounding.quantum(p, part.name)
    if p_format.endswith("x2"):
        low = _LOW_PART * part.unit_roundoff * spacing / 2
        spacing = namespace(p).clip(low, part.smallest_subnormal, None)
    return namespace(p).where((p == 1) | (p == 0), 0.0, spacing)
