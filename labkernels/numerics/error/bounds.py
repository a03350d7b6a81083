"""An upper bound on the difference between a right kernel and float64, for each element.

Symbols: p_j softmax probabilities, o = sum p_j v_j, A = sum p_j |v_j|, u unit roundoffs. Kernels
covered: online softmax over steps of at least 16 keys, any order of keys and dims, any partition
into at most 8 warps and Execution.splits splits, fp32 accumulators, fp16 or bf16 inputs. Every
quantity belongs to one row: under a causal mask its chains have one term per key that it sees.
"""

import functools
from dataclasses import dataclass

import numpy as np

from labkernels import formats
from labkernels.numerics.arrays import ZERO, Array, float64, moved, namespace
from labkernels.numerics.emulation import tensor_core
from labkernels.numerics.error.execution import ANY_EXECUTION, Execution
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.truth.rows import Block, Rows, weighted_sum
from labkernels.numerics.truth.threads import over_rows
from labkernels.numerics.truth.variant import VariantTensors
from labkernels.policy import NumericPolicy
from labkernels.units import LOG2_E

# relative error of one exp2, its last rounding included; mufu: 2 ulp from the rounded 2^x
EXP2_ERROR = {"mufu": 2.0**-22 + 2.0**-24, "poly3": 1.03e-4, "poly5": 3.0e-7}

_U32 = 2.0**-24
_SMALLEST_STEP = 16  # least keys between two moves of the running maximum
_WARPS = 8
# Roundings of the largest |score|: 6 by exp2's scale, made of two rounded factors, 1 by its
# product, 2 by its argument and 2 by the telescoping rescales; one more is allowed.
_ARGUMENT_ROUNDINGS = 12
_SLOPE_ROUNDINGS = 3  # of log2 e, of its product with the slope, and of the fma that adds this
_LARGEST_EXPONENT_ERROR = 80.0  # expm1 of a larger argument would only overflow, in fp32
_FEW_TERMS = 2.0**-7  # largest exponent error for which three terms of the series do in fp32
# The part of a sum that fp32 may lose: 2^-14 in a product over 1024 keys, as much in the errors of
# scores, and in a weight 2^-24 times the score's distance to the maximum.
_LOST_IN_FP32 = 2.0**-12
_NO_BOUND = 1e100  # not inf, since inf * 0 is NaN


def out_bound(
    problem: Problem, policy: NumericPolicy, execution: Execution = ANY_EXECUTION
) -> np.ndarray:
    """Return the largest |out - o| that rounding can cause; NaN where inputs are not finite.

    Shapes: [total_q, Hq, Dv] float64. A row without keys gives 0.
    Error: a right kernel never exceeds the bound, which is 8 to 50 times the largest error seen
    with P in 16 bits, and 1000 times with fp32 throughout, where chains count at their worst.
    Source: first-order terms of block-FMA and softmax analyses, made rigorous here.
    """
    return both_bounds(problem, policy, execution)[0]


def both_bounds(
    problem: Problem,
    policy: NumericPolicy,
    execution: Execution = ANY_EXECUTION,
    *,
    narrow: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Return out_bound, and the largest |lse2 error| in log2 units, by one pass over the keys.

    A row without keys gives 0, or the rounding of its sink. narrow: in fp32, 2^-12 larger.
    Shapes: [total_q, Hq, Dv] and [total_q, Hq].
    """
    out, lse2 = problem.zeros(*problem.out_shape), lse2_bound_without_keys(problem)
    work = functools.partial(of_rows, policy=policy, execution=execution, narrow=narrow)
    for rows, (of_out, of_lse2) in over_rows(problem, work):
        rows.put(out, of_out)
        rows.put(lse2, of_lse2)
    return out, lse2


def lse2_bound_without_keys(problem: Problem) -> Array:
    """Return the bound of each row's lse2 if it saw no key: the rounding of its sink, or 0."""
    lse2 = problem.zeros(*problem.q.shape[:2])
    if problem.variant is None or problem.variant.sinks is None:
        return lse2
    sinks = abs(np.asarray(problem.variant.sinks, np.float64))
    return lse2 + moved(np.where(np.isfinite(sinks), 4 * _U32 * LOG2_E * sinks, 0.0), lse2)


def of_rows(
    rows: Rows, policy: NumericPolicy, execution: Execution, *, narrow: bool, coarse: bool = False
) -> tuple[Array, Array]:
    """Return both bounds of some rows. Shapes: [Hkv, R, Dv] and [Hkv, R].

    coarse: narrow, and the chains of scores count by the length of the longest key.
    """
    chain = _Chain(policy, execution, rows.n_keys)
    sums = _coarse_sums(rows, chain) if coarse else None
    sums = sums or _sums(rows, chain, narrow=narrow)
    if narrow and not namespace(sums.a_error).isfinite(sums.a_error).all():
        sums = _sums(rows, chain, narrow=False)  # beyond the range of fp32
    return _out_bound(sums, chain), _lse2_bound(rows, sums, chain)


@dataclass(frozen=True)
class _Chain:
    """The roundings of a key's contribution, in rows of n_keys [R] keys."""

    policy: NumericPolicy
    execution: Execution
    n_keys: np.ndarray

    @property
    def p_error(self) -> float:
        """Unit roundoff of P; hi + lo keeps the error of the low part alone."""
        part = formats.named(self.policy.p.removesuffix("x2"))
        return part.unit_roundoff**self.policy.p_parts

    @property
    def p_underflow(self) -> float:
        """Absolute error of a P that is subnormal, or that exp2 flushed to zero."""
        part = formats.named(self.policy.p.removesuffix("x2"))
        return max(part.smallest_subnormal / 2, 2.0**-125)

    @property
    def rescales(self) -> Array:
        """Number of factors exp2(m_old - m_new) on a key: moves of the maximum, and two merges."""
        return -(-self.n_keys // _SMALLEST_STEP) + 2

    @property
    def joins(self) -> Array:
        """Number of roundings of an accumulator outside its chain: rescales, merges, division."""
        return self.rescales + _WARPS + self.execution.splits + 4

    def product_error(self, n_terms: Array) -> Array:
        """Return the error of a sum of n products relative to sum |a_k b_k|, on these units."""
        if not self.policy.tensor_cores:
            return (n_terms + 1) * _U32
        unit = tensor_core.unit_of(self.execution.arch, "bf16")  # fp16 has the same
        step = 2.0**-23 + (unit.chunk + 1) * 2.0**-unit.fraction_bits
        return -(-n_terms // unit.chunk) * step

    @property
    def value_error(self) -> Array:
        """Relative error of sum P v, given the computed P: its chain of products and the joins."""
        chain = self.policy.p_parts * self.product_error(self.n_keys)
        return chain + self.joins * _U32

    @property
    def sum_error(self) -> Array:
        """Relative error of the denominator, given the computed P."""
        error = (self.n_keys + self.joins) * _U32
        if self.policy.denominators[-1] == "rounded":
            error = error + self.p_error + self.n_keys * self.p_underflow
        return error


@dataclass(frozen=True)
class _Sums:
    """The sums that the bounds of some rows need. Shapes: rows [Hkv, R], vectors [Hkv, R, Dv]."""

    o: np.ndarray
    weight_error: np.ndarray  # sum p_j eps_j
    a: np.ndarray  # sum p_j |v_j|
    a_error: np.ndarray  # sum p_j eps_j |v_j|
    v: np.ndarray  # sum |v_j|


def _sums(rows: Rows, chain: _Chain, *, narrow: bool) -> _Sums:
    """Return weighted sums over the keys of some rows; narrow: in fp32, enlarged by the loss."""
    xp = namespace(rows.q_log2)
    softmax, dtype = rows.softmax, xp.float32 if narrow else xp.float64
    per_product, common = (xp.asarray(x, dtype=dtype) for x in _exponent_errors(rows, chain))
    weight_error, a, a_error, v_sum = ZERO, ZERO, ZERO, ZERO
    for block, _, p in rows.weighted_blocks(narrow=narrow):
        k_abs, v_abs = block.sizes(narrow=narrow)
        error = per_product @ xp.swapaxes(k_abs, 1, 2)
        error += common
        p_eps = p * _grown(error, narrow=narrow)
        if block.hidden is not None:
            p_eps = xp.where(block.hidden, 0.0, p_eps)
        v_sum = v_sum + _seen(block, v_abs)
        weight_error = weight_error + float64(p_eps.sum(-1))
        a = a + float64(weighted_sum(p, v_abs))
        a_error = a_error + float64(weighted_sum(p_eps, v_abs))
    if rows.sinks is not None:  # a key without a value
        of_sink = float64(_grown(common, narrow=False)) * rows.sink_weight
        weight_error = weight_error + of_sink[..., 0]
    l, more = softmax.divisor, 1 + _LOST_IN_FP32 * narrow
    sums = (weight_error / l[..., 0], a / l, a_error / l, v_sum)
    return _Sums(rows.o, *(more * x for x in sums))


def _coarse_sums(rows: Rows, chain: _Chain) -> _Sums | None:
    """Return no less than `_sums` in fp32 does, by the largest error that any key's score may have.

    By Cauchy's inequality no score's chain errs more than that of the longest key, along q. Where
    this is not small beside P's rounding, None is returned.
    """
    xp, (per_product, common) = namespace(rows.q_log2), _exponent_errors(rows, chain)
    longest = float(max(xp.amax(block.longest) for block in rows.blocks()))
    of_chain = longest * xp.sqrt((per_product**2).sum(-1))[..., None]
    if not xp.amax(of_chain) <= chain.p_error / 2:
        return None
    eps = _grown(of_chain + common, narrow=False)
    a, v_sum = ZERO, ZERO
    for block, _, p in rows.weighted_blocks(narrow=True):
        v_abs = block.sizes(narrow=True)[1]
        a = a + float64(weighted_sum(p, v_abs))
        v_sum = v_sum + _seen(block, v_abs)
    a, more = a / rows.softmax.divisor, 1 + _LOST_IN_FP32
    return _Sums(rows.o, *(more * x for x in (eps[..., 0], a, eps * a, v_sum)))


def _exponent_errors(rows: Rows, chain: _Chain) -> tuple[Array, Array]:
    """Return what errs in an exponent: per |k|, as [Hkv, R, D], and for any key, [Hkv, R, 1]."""
    softmax = rows.softmax
    common = (chain.rescales + 1) * (EXP2_ERROR[chain.policy.exp2] + _U32)
    common = common + _ARGUMENT_ROUNDINGS * _U32 * softmax.largest / LOG2_E
    variant = rows.problem.variant
    if variant is not None and variant.soft_cap is not None:
        relative, absolute = chain.execution.tanh_error
        common = common + relative * softmax.largest / LOG2_E + absolute * variant.soft_cap
    if variant is not None and variant.alibi is not None:
        common = common + _SLOPE_ROUNDINGS * _U32 * _largest_slope_term(rows, variant)
    if variant is not None and variant.by_distance is not None:
        largest = abs(np.asarray(variant.by_distance, np.float64)).max(1)
        common = common + _SLOPE_ROUNDINGS * _U32 * moved(largest[rows.heads], common)
    per_product = chain.product_error(rows.q_log2.shape[-1]) * abs(rows.q_log2) / LOG2_E
    return per_product, common[..., None]


def _largest_slope_term(rows: Rows, variant: VariantTensors) -> Array:
    """Return the largest |slope times distance| of the keys that a row may see. Shapes: [Hkv, R].

    The score itself may be smaller, where q k is of the other sign.
    """
    places = rows.places[:, 0]
    slopes = abs(float64(moved(np.asarray(variant.alibi)[rows.heads], places)))
    behind = places if variant.window_left is None else places.clip(None, variant.window_left)
    return slopes * namespace(places).maximum(behind, abs(rows.n_keys - 1 - places))


def _seen(block: Block, v_abs: Array) -> Array:
    """Return the sum of |v| over the keys that rows see. Shapes: [Hkv, R or 1, Dv]."""
    if block.hidden is None:
        return float64(v_abs.sum(1)[:, None])
    return float64(weighted_sum(namespace(v_abs).asarray(~block.hidden, dtype=v_abs.dtype), v_abs))


def _grown(error: Array, *, narrow: bool) -> Array:
    """Return e^x - 1 for errors x of an exponent, 0 or more.

    Error: in fp32, three terms of the series leave x^3 / 24 of the result, at most 2^-25.6 where x
    is at most _FEW_TERMS. That is half of fp32's own rounding, and _LOST_IN_FP32 holds both.
    """
    xp = namespace(error)
    if narrow and xp.amax(error) <= _FEW_TERMS:
        found = error / 6
        found += 0.5
        found *= error
        found += 1
        found *= error
        return found
    return xp.expm1(xp.clip(error, None, _LARGEST_EXPONENT_ERROR))


def _out_bound(sums: _Sums, chain: _Chain) -> Array:
    """Return the bound of the stored o^: adds half a spacing at the largest possible o^."""
    target = formats.named(chain.policy.out)
    internal = _internal_bound(sums, chain)
    stored = abs(sums.o) + internal
    seen = chain.n_keys[:, None] > 0
    rounding = target.unit_roundoff * stored + target.smallest_subnormal / 2
    return (internal + rounding) * seen


def _internal_bound(sums: _Sums, chain: _Chain) -> Array:
    """Return the bound of |o^ - o| before the store.

    With p_j (1 + eps_j) for p_j: o^ - o = sum p_j eps_j (v_j - o) / (1 + sum p_j eps_j), exactly.
    In addition each term has a factor 1 + theta from P's rounding, the chain, l and the division.
    """
    grown = 1 + _room(sums.weight_error)[..., None]
    weights = (sums.a_error + abs(sums.o) * sums.weight_error[..., None]) * grown
    factor = ((1 + chain.p_error) * (1 + chain.value_error))[:, None]
    theta = factor * (1 + _room(chain.sum_error))[:, None] - 1
    zeros = 2.0**-125 * chain.n_keys[:, None]
    underflow = (chain.p_underflow * sums.v + zeros) * factor
    return weights + theta * (sums.a + sums.a_error) * grown + underflow * grown + 2.0**-45 * sums.a


def _lse2_bound(rows: Rows, sums: _Sums, chain: _Chain) -> Array:
    """Return the bound of lse2: errors of the sum, of log2 and of the last addition."""
    xp = namespace(sums.o)
    relative = (1 + _room(sums.weight_error)) * (1 + _room(chain.sum_error)) - 1
    counted = xp.clip(chain.n_keys, 1, None)
    log2_error = 4 * 2.0**-23 * (1 + xp.log2(counted))
    lse2 = xp.where(chain.n_keys > 0, rows.softmax.lse2, 0.0)
    last = 2 * _U32 * (abs(lse2) + rows.softmax.largest)
    return (LOG2_E * relative + log2_error) * (chain.n_keys > 0) + last


def _room(error: Array) -> Array:
    """Return 1 / (1 - error) - 1; where error reaches 1, a huge finite number, as for no bound."""
    xp = namespace(error)
    return xp.where(error >= 1, _NO_BOUND, error / xp.where(error >= 1, 1.0, 1 - error))
