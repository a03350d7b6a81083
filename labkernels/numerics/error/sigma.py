"""The expected error of a kernel: a standard deviation per element, by its policy."""

import math

import numpy as np

from labkernels import formats
from labkernels.numerics import rounding
from labkernels.numerics.arrays import ZERO, Array, float64, namespace
from labkernels.numerics.emulation import tensor_core
from labkernels.numerics.error.bounds import TANH_ERROR
from labkernels.numerics.error.execution import ANY_EXECUTION, Execution
from labkernels.numerics.truth.frame import Frame
from labkernels.numerics.truth.problem import Block, Problem, Rows
from labkernels.policy import NumericPolicy
from labkernels.units import LN_2

# spread of the relative error of one exp2 over a binade, about its mean, which cancels in o
EXP2_SPREAD = {"mufu": 2.7e-8, "poly3": 4.6e-5, "poly5": 6.3e-8}
# The error of the exp2 in a rescale, or in a merge of warps or splits, applies to all keys summed
# before. A sum over k random keys of n differs from its share of the whole by (k / n) (1 - k / n)
# of all squares. Over all moves of a maximum that is half of the squares, in a merge all of them.
_HANDED_ON = 1 / 2 + 1 + 1

# ulp(x)^2 / x^2, a mean over the binades of float32; the variance of one rounding of x to it
_ULP2 = 0.75 / (2 * math.log(2)) * 2.0**-46
_ROUNDING = _ULP2 / 12
_JOINS = 4  # roundings of o and l outside their chains: rescales, merges, o / l
_FARTHEST = 200.0  # log2 units below the maximum, beyond which a weight is 0 in fp32
# a P that is rounded no more coarsely than its score: the score's roundings count too
_FINE = ("fp32", "fp16x2", "bf16x2")

# rms spacing at a low part, uniform in half an ulp of the high part, over u times that half ulp:
# of the numbers below 1, half lie in the topmost binade, and each binade has half the spacing
_LOW_PART = (4 / 7) ** 0.5


def sigma(
    problem: Problem, policy: NumericPolicy, execution: Execution = ANY_EXECUTION
) -> np.ndarray:
    """Expected standard deviation of out - o: variances of rounding P, exp2, the sums and the
    store, summed; where P keeps fp32's precision or nearly so, those of its score too.

    Shapes: [total_q, Hq, Dv] float64; metrics.rms(sigma, by="head") is the RMSE to expect per head.
    If two denominators are possible, the larger sigma counts. Error: 15 % with P or the output in
    16 bits. With both in fp32 the order of the sums decides: the error seen is as much smaller as
    there are chains beyond execution.chains, and 1.5 times larger where the first keys have most of
    the weight.
    Source: uniform rounding errors, ulp^2 / 12 each.
    """
    found = problem.zeros(*problem.out_shape)
    for rows in problem.row_blocks():
        store = rounding.quantum(rows.o, policy.out) ** 2 / 12
        internal = internal_variance(rows, policy, execution)
        variance = (internal + store) * (rows.n_keys[:, None] > 0)
        rows.put(found, namespace(variance).sqrt(variance))
    return found


def internal_variance(rows: Rows, policy: NumericPolicy, execution: Execution) -> Array:
    """Variance before the store. Shapes: [Hkv, R, Dv]."""
    xp, frame = namespace(rows.q_log2), Frame(rows, policy.narrow)
    sums = _Squares()
    for block, score, p, values in frame.weighted_blocks():
        exponent = exponent_variance(block, score, policy)
        alike = isinstance(exponent, float)  # for all keys, so that no sum of its own is needed
        of_exponent = [] if alike else [exponent * p**2]
        sums.add([p**2, p_spacing(p, policy.p) ** 2 / 12, *of_exponent], values)
    o, divisor = rows.o, rows.softmax.divisor
    kinds = [sums.about(1, frame.inside(o * (kind == "rounded"))) for kind in policy.denominators]
    weights = kinds[0] if len(kinds) == 1 else xp.maximum(*kinds)
    of_o = sums.about(0 if alike else 2, frame.inside(o))
    weights = weights + (exponent * of_o if alike else of_o)
    squares = sums.about(0, frame.inside(0.0 * o)) * frame.size**2 / divisor**2
    return weights * frame.size**2 / divisor**2 + _sums_variance(rows, squares, policy, execution)


def _sums_variance(
    rows: Rows, squares: Array, policy: NumericPolicy, execution: Execution
) -> Array:
    """Variance of the sums of P v and of P, rounded at every step as they grow.

    For n terms in random order, the sum of the first k has the mean square (k / n)^2 o^2 + (k / n)
    (1 - k / n) sum p^2 v^2; over all k that is a third of o^2 and a sixth of the other.
    Shapes: squares, those of p v over l, and the result [Hkv, R, Dv].
    """
    chains, steps, of_step = execution.chains, _terms(rows), 1.0
    if policy.tensor_cores and policy.p != "fp32":
        unit = tensor_core.unit_of(execution.arch, policy.p.removesuffix("x2"))
        steps = steps / unit.chunk * policy.p_parts
        of_step = 1 + (unit.chunk + 1) * 4.0 ** (unit.out_fraction_bits - unit.fraction_bits)
    held = rows.o**2 / (3 * chains**2) + squares / (6 * chains)
    own = _ROUNDING * (steps * of_step * held + _JOINS * rows.o**2)
    return own + denominator_variance(rows, execution) * rows.o**2


def denominator_variance(rows: Rows, execution: Execution = ANY_EXECUTION) -> Array:
    """Variance of the relative error that l's sum and the joins give to all channels of a row.

    Shapes: [R, 1].
    """
    return _ROUNDING * (_terms(rows) / (3 * execution.chains**2) + _JOINS)


def _terms(rows: Rows) -> Array:
    """Keys of each row, at least one. Shapes: [R, 1]."""
    return namespace(rows.o).clip(rows.n_keys, 1, None)[:, None]


def exponent_variance(block: Block, score: Array, policy: NumericPolicy) -> Array:
    """Variance of a weight's relative error before P is rounded: of exp2, and of its argument.

    A score's chain of D products is rounded at every step, in units of what it holds there. Only
    keys of high score count, so that the chain is a random walk whose end is given: after k of D
    products the mean square is (k / D)^2 s^2 + (k / D) (1 - k / D) sum q^2 k^2, over all k a third
    of s^2 and a sixth of the sum. (Without the given end it would be half of the sum, whatever the
    score, and 5 times too little for the key of the largest of 100 scores.) The argument and the
    scale's rounding err by the spacing at the distance to the maximum.
    Shapes: [Hkv, R, n], or a number where the argument does not matter: P in 16 bits rounds a
    hundred times more.
    """
    spread = ZERO + EXP2_SPREAD[policy.exp2] ** 2 * (1 + _HANDED_ON)
    variant = block.rows.problem.variant
    if variant is not None and variant.soft_cap is not None:
        seen = namespace(score).where(namespace(score).isinf(score), 0.0, score)
        spread = spread + (LN_2 * TANH_ERROR * seen) ** 2 / 3
    if policy.p not in _FINE:
        return spread
    rows, xp = block.rows, namespace(score)
    squares = rows.q_log2**2 @ xp.swapaxes(block.k**2, 1, 2)
    ends = xp.where(xp.isinf(score), 0.0, score)
    walk = rows.q_log2.shape[-1] * _ROUNDING * (ends**2 / 3 + squares / 6)
    distance = xp.clip(rows.softmax.m[..., None] - score, None, _FARTHEST)
    return spread + LN_2**2 * (walk + 2 * rounding.quantum(distance, "fp32") ** 2 / 12)


class _Squares:
    """Sums of weights_j (v_j - x)^2 for any x and several weights, without the differences."""

    def __init__(self) -> None:
        self.weights, self.values = ZERO, ZERO

    def add(self, weights: list[Array], values: Array) -> None:
        """Count a block of keys. Shapes: weights [Hkv, R, n] each; values [Hkv, n, 2 Dv]."""
        xp = namespace(values)
        stacked = xp.stack([xp.asarray(w, dtype=values.dtype) for w in weights], 1)
        self.weights = self.weights + float64(stacked.sum(-1)[..., None])
        heads, kinds, rows, n = stacked.shape
        sums = stacked.reshape(heads, -1, n) @ values
        self.values = self.values + float64(sums.reshape(heads, kinds, rows, -1))

    def about(self, kind: int, x: Array) -> Array:
        """The sum of one of the weights about x. Shapes: [Hkv, R, Dv]."""
        weights, values = self.weights[:, kind], self.values[:, kind]
        n = values.shape[-1] // 2
        total = values[..., n:] - 2 * x * values[..., :n] + x**2 * weights
        return namespace(total).clip(total, 0.0, None)


def p_spacing(p: Array, p_format: str) -> Array:
    """Spacing of P's format at p; 0 where p is exact, at the row's maximum (1) and at 0."""
    part = formats.named(p_format.removesuffix("x2"))
    spacing = rounding.quantum(p, part.name, narrow=p.dtype == namespace(p).float32)
    if p_format.endswith("x2"):
        low = _LOW_PART * part.unit_roundoff * spacing / 2
        spacing = namespace(p).clip(low, part.smallest_subnormal, None)
    return namespace(p).where((p == 1) | (p == 0), 0.0, spacing)
