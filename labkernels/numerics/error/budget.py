"""Where the error of a decode comes from: the variance and the bias of every source of rounding.

Example: budget = error_budget(problem, policy, order). For a bf16 decode budget.table(by="all")
then shows that rounding P and rounding the output have half of the variance each. budget.z(out),
the error about its bias in units of its sigma, has standard deviation 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from labkernels.numerics import metrics, rounding
from labkernels.numerics.arrays import Array
from labkernels.numerics.emulation import exp2 as emulation_exp2
from labkernels.numerics.emulation import softmax_trace
from labkernels.numerics.emulation.decode import SOURCES
from labkernels.numerics.emulation.softmax_trace import SoftmaxTrace, shift
from labkernels.numerics.emulation.summation_order import SummationOrder
from labkernels.numerics.error import fp32_sums, truncation_bias
from labkernels.numerics.error import sigma as error_sigma
from labkernels.numerics.error.execution import ANY_EXECUTION, Execution
from labkernels.numerics.truth.problem import Problem
from labkernels.policy import NumericPolicy
from labkernels.units import LN_2, LOG2_E

_NEIGHBOURS = (-2, -1, 0, 1, 2)
_PHASE = 0.618  # a factor by which multiples of a step do not all have the same low bits
_EXP2_NORMAL = -126.0  # below this argument, the functions return 0 or lose precision
_COLUMNS = [("source", "U12"), *((name, "f8") for name in ("variance", "bias", "square", "share"))]


@dataclass(frozen=True, eq=False)
class ErrorBudget:
    """The contribution of each source to the error of an output o, in the order of SOURCES.

    biases: the mean error that the inputs predict; variances: of the remaining error, with
    roundings taken as random. Shapes: biases, variances [S, total_q, Hq, Dv]; o [total_q, Hq, Dv].
    """

    o: np.ndarray
    biases: np.ndarray
    variances: np.ndarray

    @cached_property
    def bias(self) -> np.ndarray:
        """The mean error of each element, over all sources together."""
        return self.biases.sum(axis=0)

    @cached_property
    def sigma(self) -> np.ndarray:
        """Standard deviation of each element's error about its bias."""
        return np.sqrt(self.variances.sum(axis=0))

    def stored(self, out_format: str) -> "ErrorBudget":
        """Return the budget of the same kernel with another output format."""
        variances = self.variances.copy()
        variances[SOURCES.index("store")] = _store(self.o, out_format)
        return replace(self, variances=variances)

    def z(self, out: Array) -> np.ndarray:
        """Return an output's error about its bias, in standard deviations; 0 / 0 counts as 0."""
        error = metrics.difference(out, self.o) - self.bias
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(error == 0, 0.0, error / self.sigma)

    def table(self, *, by: str) -> np.ndarray:
        """Return one row per source, for groups as in metrics.GROUPS.

        Shapes: by="all" -> [S], "head" -> [Hq, S], "sample" -> [total_q, S], of a record: source;
        variance; bias, mean along the sign of o; square, mean of variance + bias^2; share of it.
        """
        squares = self.variances + self.biases**2
        table = np.empty((*metrics.mean(self.o, by=by).shape, len(SOURCES)), dtype=_COLUMNS)
        table["source"] = SOURCES
        for s in range(len(SOURCES)):
            table["variance"][..., s] = metrics.mean(self.variances[s], by=by)
            table["bias"][..., s] = metrics.mean(self.biases[s] * np.sign(self.o), by=by)
            table["square"][..., s] = metrics.mean(squares[s], by=by)
        total = table["square"].sum(axis=-1, keepdims=True)
        table["share"] = table["square"] / np.where(total == 0, 1.0, total)
        return table


def error_budget(
    problem: Problem,
    policy: NumericPolicy,
    order: SummationOrder,
    execution: Execution = ANY_EXECUTION,
) -> ErrorBudget:
    """Return the budget of a decode with given roundings and order of keys.

    Error: the spread of z per head is within 15 % of 1, data/accuracy/error_calibration.parquet; it
    is far less where outputs are nearly numbers of their format, as a sink's value is. An unknown
    denominator counts as unrounded. Raises: ValueError for tensor cores with P in fp32.
    """
    if policy.tensor_cores and policy.p == "fp32":
        raise ValueError(f"accumulate = {policy.accumulate!r} with p = 'fp32', allowed: 'fma'")
    o = np.zeros(problem.out_shape)
    biases, variances = (np.zeros((len(SOURCES), *problem.out_shape)) for _ in range(2))
    for place, trace in softmax_trace.blocks(problem, order):
        place.put(o, trace.o)
        for s, (bias, variance) in enumerate(_terms(trace, policy, execution.arch, problem.scale)):
            place.put(biases[s], bias)
            place.put(variances[s], variance)
    return ErrorBudget(o, biases, variances)


def _terms(
    trace: SoftmaxTrace, policy: NumericPolicy, arch: str, scale: float
) -> tuple[tuple[Array, Array], ...]:
    """Return the mean and variance that each of SOURCES adds to some rows. Shapes: [R, Dv]."""
    none = np.zeros_like(trace.o)
    if policy.tensor_cores:
        accumulated = truncation_bias.accumulation(trace, policy, arch)
    else:
        accumulated = none, fp32_sums.accumulation(trace)
    weight = trace.weight[:, -1, :, None]
    held = np.where(weight > 0, trace.part_o.sum(axis=1) / np.where(weight > 0, weight, 1), 0.0)
    return (
        _scores(trace, policy, arch, scale),
        _exp2(trace, policy, scale),
        _p(trace, policy),
        (none, trace.o**2 * fp32_sums.denominator(trace)[:, None]),
        accumulated,
        (none, fp32_sums.merge(trace, held)),
        (none, _store(trace.o, policy.out)),
    )


def _scores(
    trace: SoftmaxTrace, policy: NumericPolicy, arch: str, scale: float
) -> tuple[Array, Array]:
    """Return mean and variance from the scores, whose errors are errors of log p.

    The part of an error that all keys share cancels.
    """
    if policy.tensor_cores:
        fmt = policy.p.removesuffix("x2")
        mean, variance = truncation_bias.product(trace.q, trace.k.T, fmt, arch=arch)
    else:
        variance = fp32_sums.dot_products(trace.q, trace.k, trace.order.lane_channels)
        mean = np.zeros_like(variance)
    p = trace.softmax
    bias = trace.sum_about(p * trace.laid_out(scale * mean), trace.o)
    return bias, trace.squares_about(p**2 * trace.laid_out(scale**2 * variance), trace.o)


def _exp2(trace: SoftmaxTrace, policy: NumericPolicy, scale: float) -> tuple[Array, Array]:
    """Return mean and variance from exp2: the scale's rounding and smooth errors count as known.

    The other errors are random. That of a rescale or of a merge weight applies to all sums so far.
    """
    exact = scale * LOG2_E
    off = float(np.float32(exact)) / exact - 1
    seen = trace.score_log2 > -np.inf
    score = np.where(seen, trace.score_log2 * (1 + off), 0.0)
    m = (trace.m * (1 + off)).astype(np.float32).astype(np.float64)
    argument = np.where(seen, score - shift(m)[..., None], 0.0)
    ulp = np.where(argument == 0, 0.0, rounding.quantum(argument, "fp32"))
    noise = np.where(argument == 0, 0.0, np.maximum(ulp, rounding.quantum(score, "fp32")))
    known, spread = _function_error(argument, noise * _PHASE, policy.exp2)
    bias = trace.sum_about(trace.softmax * (known + LN_2 * off * score), trace.o)
    random = spread + (LN_2 * ulp) ** 2 / 12
    variance = trace.squares_about(trace.softmax**2 * random, trace.o)
    part_l = trace.softmax.sum(axis=-1)[..., None]
    held = np.cumsum(trace.part_o - trace.o * part_l, axis=1)
    last = m[:, -1].reshape(-1, trace.order.warps, len(trace.o))
    of_warps, of_splits = held[:, -1].reshape(*last.shape, -1), last.max(axis=1)
    for old, new, sums in (
        (trace.before(m, -np.inf), m, trace.before(held)),
        (last, of_splits[:, None], of_warps),
        (of_splits[:, None], of_splits.max(axis=0), of_warps.sum(axis=1, keepdims=True)),
    ):
        known, spread = _factor_error(old, new, policy.exp2)
        bias = bias + (known * sums).sum(axis=(0, 1))
        variance = variance + (spread * sums**2).sum(axis=(0, 1))
    return bias, variance


def _factor_error(old: np.ndarray, new: np.ndarray, exp2: str) -> Iterator[Any]:
    """Return mean and variance of the relative error of 2^(old - new). Shapes: [..., R, 1]."""
    x = np.where(old == -np.inf, 0.0, old - shift(new))
    ulp = np.where(x == 0, 0.0, rounding.quantum(np.minimum(shift(old), shift(new)), "fp32"))
    return (part[..., None] for part in _function_error(x, ulp, exp2))


def _function_error(x: np.ndarray, step: np.ndarray, exp2: str) -> tuple[Array, Array]:
    """Return mean and variance of the relative error of exp2 at x and neighbours a step apart.

    The differences between neighbours count as random, since the scores' errors choose the place.
    """
    found = [_relative_error(x + n * step, exp2) for n in _NEIGHBOURS]
    return np.mean(found, axis=0), np.var(found, axis=0)


def _relative_error(x: np.ndarray, exp2: str) -> np.ndarray:
    x = x.astype(np.float32)
    wide = x.astype(np.float64)
    found = emulation_exp2.EXP2[exp2](x).astype(np.float64)
    normal = wide > _EXP2_NORMAL
    return np.where(normal, found / np.exp2(np.where(normal, wide, 0.0)) - 1, 0.0)


def _p(trace: SoftmaxTrace, policy: NumericPolicy) -> tuple[Array, Array]:
    """Return mean and variance from rounding P: uniform in half a spacing, known if P underflows.

    At a maximum P differs from 1 only by the rounding of the maximum in fp32, which 16 bits cannot
    hold.
    """
    none = np.zeros_like(trace.o)
    if policy.p == "fp32":
        return none, none
    about = trace.o if policy.denominator == "rounded" else none
    weight = trace.weight[..., None]
    spacing = error_sigma.p_spacing(trace.p, policy.p)
    rounded = sum(rounding.p_parts(trace.p, policy.p))
    tiny = trace.p < spacing
    bias = trace.sum_about(np.where(tiny, rounded - trace.p, 0.0) * weight, about)
    if policy.p_parts == 1:
        shrunk = rounding.mean_relative_error(policy.p) * np.where(tiny, 0.0, trace.softmax)
        bias += trace.sum_about(np.where(trace.p == 1, 0.0, shrunk), about)
        at_top = LN_2 * rounding.quantum(trace.m, "fp32")[..., None]
        spacing = np.where(trace.p == 1, at_top, spacing)
    return bias, trace.squares_about(np.where(tiny, 0.0, spacing * weight) ** 2 / 12, about)


def _store(o: np.ndarray, out_format: str) -> np.ndarray:
    """Return the variance of the division and of the output's own rounding."""
    variance = fp32_sums.one_rounding(o)
    if out_format == "fp32":
        return variance
    return variance + np.where(o == 0, 0.0, rounding.quantum(o, out_format) ** 2 / 12)
