"""One look at an output: all that float64 says of some rows, while their scores are at hand.

A large problem's scores are not kept. So each block of rows gives its part of the truth, of the
bounds, of sigma and of the filters at once, and a thread's memory serves its next block.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labkernels.numerics import metrics, rounding
from labkernels.numerics.arrays import Array, to_numpy
from labkernels.numerics.error import bounds
from labkernels.numerics.error.execution import ANY_EXECUTION
from labkernels.numerics.truth.oracle import lse2_without_keys
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.truth.rows import Rows
from labkernels.numerics.truth.threads import over_rows
from labkernels.numerics.verdict import matched_filters, significance
from labkernels.numerics.verdict.matched_filters import Filtering, Filters
from labkernels.policy import NumericPolicy


@dataclass(frozen=True, eq=False)
class Look:
    """What a look finds.

    Shapes: truth, error and bound [total_q, Hq, Dv], lse2 and lse2_bound [total_q, Hq]. once: every
    element is the truth, rounded once.
    """

    truth: np.ndarray
    lse2: np.ndarray
    error: np.ndarray
    bound: np.ndarray
    lse2_bound: np.ndarray
    once: bool
    _filtering: Filtering = field(repr=False)
    _left: list[Rows] = field(repr=False)

    def filtered(self) -> tuple[np.ndarray, Filters]:
        """Return sigma and the filters; rows that were right without them have theirs only now."""
        while self._left:
            rows = self._left.pop()
            self._filtering.put(rows, self._filtering.of_rows(rows, rows.of(self.error)))
        return self._filtering.result(self.error)


def look(problem: Problem, policy: NumericPolicy, out: np.ndarray) -> Look:
    """Look at an output. Shapes: out [total_q, Hq, Dv]."""
    filtering = expected(problem, policy)
    coarse = policy.narrow and matched_filters.is_sampled(problem)

    def of_rows(rows: Rows) -> tuple[Any, ...]:
        bound, of_lse2 = bounds.of_rows(
            rows, policy, ANY_EXECUTION, narrow=policy.narrow, coarse=coarse
        )
        stored, o = rows.of(out), to_numpy(rows.o)
        error, once = metrics.difference(stored, o), ulps_off(stored, o, policy.out) <= 0.5
        skipped = once or not np.isfinite(to_numpy(bound)).all()
        found = None if skipped else filtering.of_rows(rows, error)
        return (o, rows.softmax.lse2, error, bound, of_lse2), once, found

    shape = problem.out_shape
    truth, error, bound = (np.zeros(shape) for _ in range(3))
    lse2 = to_numpy(lse2_without_keys(problem))
    lse2_bound = to_numpy(bounds.lse2_bound_without_keys(problem))
    blind = problem.n_keys == 0
    error[blind] = metrics.difference(out[blind], truth[blind])
    all_once, left = ulps_off(out[blind], truth[blind], policy.out) <= 0.5, []
    for rows, (arrays, once, found) in over_rows(problem, of_rows):
        for target, values in zip((truth, lse2, error, bound, lse2_bound), arrays, strict=True):
            rows.put(target, to_numpy(values))
        all_once = all_once and once
        if found is None:
            left.append(rows)
        else:
            filtering.put(rows, found)
    return Look(truth, lse2, error, bound, lse2_bound, all_once, filtering, left)


def expected(problem: Problem, policy: NumericPolicy) -> Filtering:
    """Return filters by the error model's sigma, with the chain's bias as a part of it."""
    bias = significance.chain_bias(problem.n_keys, policy)
    return matched_filters.with_sigma(problem, policy, bias)


def ulps_off(out: Array, truth: Array, fmt: str) -> float:
    """Return the largest distance from the truth, in spacings of the format at the truth.

    An earlier rounding, as from float64 to float32, may decide a tie the other way. It moves the
    truth by at most 2^-24 of itself, which is allowed.
    """
    off = np.maximum(np.abs(out - truth) - 2.0**-24 * np.abs(truth), 0.0)
    ulps = off / rounding.quantum(truth, fmt)
    return float(np.max(np.where(np.isnan(ulps), np.inf, ulps), initial=0.0))
