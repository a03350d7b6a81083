"""The expected error of a kernel: a standard deviation per element, by its policy."""

import math

import numpy as np

from labkernels import formats
from labkernels.numerics import rounding
from labkernels.numerics.arrays import ZERO, Array, float64, namespace
from labkernels.numerics.emulation import tensor_core
from labkernels.numerics.error.execution import ANY_EXECUTION, TANH_ERROR, Execution
from labkernels.numerics.truth.frame import Frame
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.truth.rows import Block, Rows
from labkernels.numerics.truth.threads import over_rows
from labkernels.policy import NumericPolicy
from labkernels.units import LN_2

# standard deviation over a binade of exp2's relative error about its mean; the mean cancels in o
EXP2_SPREAD = {"mufu": 2.7e-8, "poly3": 4.6e-5, "poly5": 6.3e-8}
# rms error of the tanh of `capped` near 0, seen in an emulation; it is twice as large near 1
TANH_SPREAD = 6.0e-8
# The error of the exp2 in a rescale, or in a merge of warps or splits, applies to all keys summed
# before. A sum over k random keys of n differs from its share of the whole by (k / n) (1 - k / n)
# of all squares. All moves of a maximum together count half of the squares, each merge all of them.
_HANDED_ON = 1 / 2 + 1 + 1

# the mean of ulp(x)^2 / x^2 over a binade of float32, and the relative variance of one rounding
_ULP2 = 0.75 / (2 * math.log(2)) * 2.0**-46
_ROUNDING = _ULP2 / 12
# p^2 over the variance of its rounding and the unit roundoff's square: 12 times the mean over a
# binade of p^2, in units of the spacing over 2 u
_OF_ROUNDING = 12 * 1.5 / math.log(2) / 4
_JOINS = 4  # roundings of o and l outside their chains: rescales, merges, o / l
_FARTHEST = 200.0  # log2 units below the maximum, beyond which a weight is 0 in fp32
_SHOWS = 2.0**-3  # part of P's roundoff: a score's chain errs by a few times its last rounding
# formats of P that are no coarser than the score's roundings, which then count too
_FINE = ("fp32", "fp16x2", "bf16x2")

# rms spacing at a low part, uniform in half an ulp of the high part, over u times that half ulp:
# half of the numbers below 1 lie in the topmost binade, and every binade has half the spacing of
# the next
_LOW_PART = (4 / 7) ** 0.5


def sigma(
    problem: Problem, policy: NumericPolicy, execution: Execution = ANY_EXECUTION
) -> np.ndarray:
    """Return the expected standard deviation of out - o.

    The variances of rounding P, exp2, the sums and the store are added, and those of the scores
    where P keeps fp32's precision or nearly so.

    Shapes: [total_q, Hq, Dv] float64; metrics.rms(sigma, by="head") is the RMSE to expect per head.
    If two denominators are possible, the larger sigma counts. Error: 15 % with P or the output in
    16 bits. With both in fp32 the order of the sums decides: the error is smaller with more chains
    than execution.chains, and 1.5 times larger where the first keys have most of the weight.
    Source: uniform rounding errors, ulp^2 / 12 each.
    """

    def of_rows(rows: Rows) -> Array:
        sums = squares(Frame(rows, policy.narrow), policy, execution)
        return of_squares(rows, sums, policy, execution)

    found = problem.zeros(*problem.out_shape)
    for rows, values in over_rows(problem, of_rows):
        rows.put(found, values)
    return found


def of_squares(
    rows: Rows, sums: "Squares", policy: NumericPolicy, execution: Execution = ANY_EXECUTION
) -> Array:
    """Return sigma of some rows, given their sums of squares. Shapes: [Hkv, R, Dv]."""
    store = rounding.quantum(rows.o, policy.out) ** 2 / 12
    internal = _internal_variance(rows, sums, policy, execution)
    variance = (internal + store) * (rows.n_keys[:, None] > 0)
    return namespace(variance).sqrt(variance)


def internal_variance(rows: Rows, policy: NumericPolicy, execution: Execution) -> Array:
    """Return the variance before the store. Shapes: [Hkv, R, Dv]."""
    sums = squares(Frame(rows, policy.narrow), policy, execution)
    return _internal_variance(rows, sums, policy, execution)


def _internal_variance(
    rows: Rows, sums: "Squares", policy: NumericPolicy, execution: Execution
) -> Array:
    xp, frame, o = namespace(rows.q_log2), sums.frame, rows.o
    scale = frame.size**2 / rows.softmax.divisor**2
    centre, zero = frame.inside(o), frame.inside(0.0)
    kinds = [
        sums.of_rounding(centre if kind == "rounded" else zero) for kind in policy.denominators
    ]
    weights = kinds[0] if len(kinds) == 1 else xp.maximum(*kinds)
    weights = weights + sums.of_exponent(centre)
    parts = sums.of_weights(zero) * scale
    if rows.sinks is not None:  # a key without a value
        weights = weights + _sink_variance(rows, policy) * (o / frame.size) ** 2
    return weights * scale + _sums_variance(rows, parts, policy, execution)


def _sums_variance(
    rows: Rows, squares: Array, policy: NumericPolicy, execution: Execution
) -> Array:
    """Return the variance of the sums of P v and of P, which are rounded at every step.

    For n terms in random order, the sum of the first k has the mean square (k / n)^2 o^2 + (k / n)
    (1 - k / n) sum p^2 v^2. The mean over all k is a third of o^2 and a sixth of the second sum.
    Shapes: squares, the sum of (p v / l)^2, and the result [Hkv, R, Dv].
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
    """Return the variance of the relative error that l's sum and the joins give to a whole row.

    Shapes: [R, 1].
    """
    return _ROUNDING * (_terms(rows) / (3 * execution.chains**2) + _JOINS)


def _terms(rows: Rows) -> Array:
    """Return the keys of each row, at least one. Shapes: [R, 1]."""
    return namespace(rows.o).clip(rows.n_keys, 1, None)[:, None]


def _sink_variance(rows: Rows, policy: NumericPolicy) -> Array:
    """Return the variance of the sinks' weights, of exp2 and its argument. Shapes: [Hkv, R, 1]."""
    xp, softmax = namespace(rows.o), rows.softmax
    distance = xp.clip(softmax.m - rows.sinks, None, _FARTHEST)[..., None]
    argument = LN_2**2 * 2 * rounding.quantum(distance, "fp32") ** 2 / 12
    relative = EXP2_SPREAD[policy.exp2] ** 2 * (1 + _HANDED_ON) + argument
    return relative * rows.sink_weight**2


def exponent_variance(
    block: Block, score: Array, policy: NumericPolicy, execution: Execution = ANY_EXECUTION
) -> Array:
    """Return the variance of a weight's relative error before P is rounded: exp2 and its argument.

    A score's chain of D products is rounded at every step, relative to its value there. Only keys
    of high score count, so that the chain is a random walk whose end is given: after k of D
    products the mean square is (k / D)^2 s^2 + (k / D) (1 - k / D) sum q^2 k^2, and its mean over
    all k is a third of s^2 and a sixth of the sum. (Without the given end the mean would be half of
    the sum, whatever the score, and 5 times too little for the largest of 100 scores.) The argument
    and the scale's rounding err by the spacing at the distance to the maximum.
    Shapes: [Hkv, R, n], or a number where the argument does not matter: P in 16 bits rounds a
    hundred times more, unless scores are so large that one fp32 spacing of them shows in P.
    """
    spread = ZERO + EXP2_SPREAD[policy.exp2] ** 2 * (1 + _HANDED_ON)
    variant = block.rows.problem.variant
    if variant is not None and variant.soft_cap is not None:
        size = abs(namespace(score).where(namespace(score).isinf(score), 0.0, score))
        spread = spread + _tanh_variance(LN_2 * size, variant.soft_cap, execution)
    if policy.p not in _FINE and not scores_show(block.rows, policy):
        return spread
    rows, xp = block.rows, namespace(score)
    squares = rows.q_log2**2 @ xp.swapaxes(block.k**2, 1, 2)
    ends = xp.where(xp.isinf(score), 0.0, score)
    walk = rows.q_log2.shape[-1] * _ROUNDING * (ends**2 / 3 + squares / 6)
    distance = xp.clip(rows.softmax.m[..., None] - score, None, _FARTHEST)
    return spread + LN_2**2 * (walk + 2 * rounding.quantum(distance, "fp32") ** 2 / 12)


def _tanh_variance(size: Array, soft_cap: float, execution: Execution) -> Array:
    """Return the variance of capped scores of some sizes, in natural units, that tanh causes."""
    if execution.tanh == "exp2":
        return (TANH_SPREAD * (soft_cap + size)) ** 2
    return (TANH_ERROR["approx"][0] * size) ** 2 / 3


def scores_show(rows: Rows, policy: NumericPolicy) -> bool:
    """Return whether roundings of the rows' scores show beside those of P in 16 bits."""
    largest = float(namespace(rows.softmax.largest).amax(rows.softmax.largest))
    return largest * _ROUNDING**0.5 > _SHOWS * formats.named(policy.p).unit_roundoff


class Squares:
    """Sums over keys of weights_j (v_j - x)^2 for any x, from sums of v and v^2.

    The weights are the variance of P's rounding, p^2, and the variance of the exponent's error
    where it differs from key to key. P is not yet divided by its sum. coarse: those of p^2, of
    which sigma needs a hundred-thousandth where P has 16 bits, follow from P's rounding.
    """

    def __init__(
        self,
        frame: Frame,
        policy: NumericPolicy,
        execution: Execution = ANY_EXECUTION,
        *,
        coarse: bool = False,
    ) -> None:
        self.frame, self.policy, self.execution, self.coarse = frame, policy, execution, coarse
        self.weights, self.values, self.exponent = ZERO, ZERO, ZERO
        self._kept: dict[tuple[int, int], Array] = {}  # variances, for a second pass

    def add(self, block: Block, score: Array, p: Array, spacing: Array, values: Array) -> Array:
        """Count a block of keys; return the variance of p's error.

        Shapes: score, p, spacing of P at p, and the result [Hkv, R, n]; values [Hkv, n, 2 Dv].
        """
        exponent = exponent_variance(block, score, self.policy, self.execution)
        alike = isinstance(exponent, float)  # one number for all keys needs no sum of its own
        self.exponent = exponent if alike else ZERO
        kinds = 3 if not alike else 1 if self.coarse else 2
        stacked = side_by_side(p, kinds)
        xp, variance = namespace(p), stacked[:, 0]
        xp.multiply(spacing, spacing, out=variance)
        variance /= 12
        if kinds > 1:
            squared = stacked[:, 1]
            xp.multiply(p, p, out=squared)
            variance = squared * exponent if alike else self.frame.narrowed(exponent * squared)
            if not alike:
                stacked[:, 2] = variance
            variance += stacked[:, 0]
        heads, _, rows, n = stacked.shape
        sums = (stacked.reshape(heads, -1, n) @ values).reshape(heads, kinds, rows, -1)
        self.weights = self.weights + float64(stacked.sum(-1)[..., None])
        self.values = self.values + float64(sums)
        if block.rows.keeps_scores:
            self._kept[block.keys] = variance
        return variance

    def variance(self, block: Block, score: Array, p: Array) -> Array:
        """Return the variance of p's error again. Shapes: [Hkv, R, n]."""
        if block.keys in self._kept:
            return self._kept[block.keys]
        found = p_spacing(p, self.policy.p)
        found *= found
        found /= 12
        exponent = exponent_variance(block, score, self.policy, self.execution)
        found += self.frame.narrowed(exponent * p**2)
        return found

    def of_weights(self, x: Array) -> Array:
        """Return the sum of p^2 (v - x)^2. Shapes: [Hkv, R, Dv]."""
        if self.weights.shape[1] == 1:
            return (
                _OF_ROUNDING / formats.named(self.policy.p).unit_roundoff ** 2 * self.of_rounding(x)
            )
        return _about(self.weights[:, 1], self.values[:, 1], x)

    def of_rounding(self, x: Array) -> Array:
        """Return the sum about x with the variance of P's rounding. Shapes: [Hkv, R, Dv]."""
        return _about(self.weights[:, 0], self.values[:, 0], x)

    def of_exponent(self, x: Array) -> Array:
        """Return the sum about x with the variance of the exponent's error."""
        if self.weights.shape[1] == 3:
            return _about(self.weights[:, 2], self.values[:, 2], x)
        return self.exponent * self.of_weights(x)

    @property
    def of_variance(self) -> tuple[Array, Array]:
        """The sums of the variance of p's error, and of this times values and their squares.

        Shapes: [Hkv, R, 1], [Hkv, R, 2 Dv].
        """
        kind, times = (2, 1.0) if self.weights.shape[1] == 3 else (1, self.exponent)
        parts = self.weights, self.values
        weights, values = (x[:, 0] + times * x[:, kind] for x in parts)
        return weights, values


def squares(frame: Frame, policy: NumericPolicy, execution: Execution) -> Squares:
    """Return the sums of squares of a frame's rows."""
    found = Squares(frame, policy, execution)
    for block, score, p, values in frame.weighted_blocks():
        found.add(block, score, p, p_spacing(p, policy.p), values)
    return found


def side_by_side(like: Array, kinds: int) -> Array:
    """Return an array for kinds of weights side by side. Shapes: like [H, R, n] -> [H, k, R, n]."""
    shape = like.shape[0], kinds, *like.shape[1:]
    return namespace(like).empty(shape, dtype=like.dtype, device=like.device)


def _about(weights: Array, values: Array, x: Array) -> Array:
    n = values.shape[-1] // 2
    total = values[..., n:] - 2 * x * values[..., :n] + x**2 * weights
    return namespace(total).clip(total, 0.0, None)


def p_spacing(p: Array, p_format: str) -> Array:
    """Return the spacing of P's format at p; 0 where p is exact: 1 at the row's maximum, or 0."""
    part = formats.named(p_format.removesuffix("x2"))
    spacing = rounding.quantum(p, part.name, narrow=p.dtype == namespace(p).float32)
    if p_format.endswith("x2"):
        low = _LOW_PART * part.unit_roundoff * spacing / 2
        spacing = namespace(p).clip(low, part.smallest_subnormal, None)
    spacing[(p == 1) | (p == 0)] = 0.0
    return spacing
