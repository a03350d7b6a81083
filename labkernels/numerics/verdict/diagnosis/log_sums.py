"""Names for a wrong log-sum-exp. The output beside it may still be right."""

import math

import numpy as np

from labkernels.numerics.arrays import Array, to_numpy
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.verdict.diagnosis.one_row import Match
from labkernels.units import LOG2_E

_LEFT = 1.0  # share of the bound that the error left over must not exceed


def names(problem: Problem, lse2: Array, truth: Array, bound: Array) -> list[Match]:
    """Return what the log-sum-exp holds instead. Shapes: lse2, truth, bound [total_q, Hq].

    rms of a match: the largest error over its bound, before and after.
    """
    live = np.isfinite(truth)
    given, right, allowed = lse2[live], truth[live], bound[live]
    if not live.any():
        return []
    was = _largest(given, right, allowed)
    tries = {
        "lse is in base e, not 2": right / LOG2_E,
        "lse is in base 10, not 2": right / math.log2(10),
        "lse was converted to base 2 twice": right * LOG2_E,
        "lse has the wrong sign": -right,
        "lse is the largest score": to_numpy(_maxima(problem))[live],
        "lse lacks the largest score": right - to_numpy(_maxima(problem))[live],
        "lse lacks the largest score, in base e": (right - to_numpy(_maxima(problem))[live])
        / LOG2_E,
    }
    found = [
        Match(name, "all rows", _largest(given, other, allowed), was)
        for name, other in tries.items()
    ]
    offset = float(np.median(given - right))
    found.append(
        Match(
            "lse is off by a constant",
            f"{offset:.4g} in base 2; all rows",
            _largest(given, right + offset, allowed),
            was,
        )
    )
    found.append(_another_row(lse2, truth, bound, was))
    kept = [match for match in found if match.rms <= _LEFT]
    return kept[:1] or [Match("lse is wrong", _where(problem, lse2, truth, bound), math.nan, was)]


def _largest(given: Array, right: Array, allowed: Array) -> float:
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(given == right, 0.0, np.abs(given - right) / allowed)
    return float(np.where(np.isnan(ratio), np.inf, ratio).max(initial=0.0))


def _maxima(problem: Problem) -> Array:
    """Return the largest score of each row. Shapes: [total_q, Hq]. Units: log2 units."""
    found = problem.zeros(*problem.out_shape[:2])
    for rows in problem.row_blocks():
        rows.put(found, rows.softmax.m)
    return found


def _another_row(lse2: Array, truth: Array, bound: Array, was: float) -> Match:
    """Return the best match with values of other heads or tokens."""
    best = Match("lse of another row", "", math.inf, was)
    for axis, what in ((1, "head"), (0, "token")):
        for step in range(1, min(truth.shape[axis], 64)):
            moved, allowed = np.roll(truth, -step, axis), np.roll(bound, -step, axis)
            with np.errstate(invalid="ignore"):
                left = _largest(lse2, moved, allowed)
            if left < best.rms:
                where = f"each row holds that of {what} + {step}"
                best = Match("lse of another row", where, left, was)
    return best


def _where(problem: Problem, lse2: Array, truth: Array, bound: Array) -> str:
    with np.errstate(invalid="ignore"):
        wrong = ~((np.abs(lse2 - truth) <= bound) | (lse2 == truth))
    first = problem.row_name(*np.argwhere(wrong)[0].tolist()) if wrong.any() else ""
    return f"{int(wrong.sum())} of {wrong.size} rows, first {first}"
