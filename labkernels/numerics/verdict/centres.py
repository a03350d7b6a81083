"""Numbers that a kernel may take off V and add back to the output, found from the errors.

P's rounding multiplies V less such a number, and so does the rounding of V less it, where that is
stored in P's format. Both grow with the distance of the number from the values that a row sees.
The number is free within the range of V: one for each channel of a KV head, or one for all of V.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from labkernels import formats
from labkernels.numerics import rounding
from labkernels.numerics.arrays import ZERO, Array, moved, namespace, to_numpy
from labkernels.numerics.truth.frame import Frame
from labkernels.numerics.truth.problem import Problem, keys_of
from labkernels.numerics.truth.rows import Rows
from labkernels.numerics.truth.threads import over_rows
from labkernels.numerics.verdict.twins import REFERENCES, SIXTEEN, STEADY, TWINS, Twin
from labkernels.policy import NumericPolicy

ABOVE = 4.5  # log2 units by which the number that stands for a row's maximum may exceed it
SIGMAS = 6.0  # most standard deviations of roundings about a number that an error may have
# The mean of spacing^2 / 12 over x^2 and the unit roundoff's square, for x in a binade.
_OF_VALUES = 0.125 / float(np.log(2))
_SUMS = 2.0**-22  # part of the largest |V| that roundings in fp32 may reach
_KERNELS = (TWINS[0], TWINS[5], *STEADY, REFERENCES[2])
_TRIED, _PASSES = 17, 3  # numbers that are tried at once, each time closer together
_NOTHING = 1.001  # sigma over that of the store where only sums in fp32 are rounded beside it
_NEVER = 1e3  # how much unlikelier an error is that exceeds its limit by itself
_ROWS = 128  # tokens of a request from which its numbers follow


@dataclass(frozen=True, eq=False)
class Moments:
    """Sums over a row's keys of something that roundings have: alone, times V and times V^2.

    Shapes: alone [total_q, Hq, 1], else [total_q, Hq, Dv].
    """

    alone: np.ndarray
    values: np.ndarray
    squares: np.ndarray

    def about(self, number: Array) -> np.ndarray:
        """Return the sums times the square of V less a number. Shapes: number [..., Dv]."""
        found = self.squares - 2 * number * self.values + number**2 * self.alone
        return np.maximum(found, 0.0)

    def about_each(self, problem: Problem, numbers: Array) -> np.ndarray:
        """Return the sums about numbers [batch, Hkv, Dv]. Shapes: [total_q, Hq, Dv]."""
        found = np.zeros(self.values.shape)
        for place, rows in _places(problem):
            found[rows] = self.of(*rows).about(numbers[place])
        return found

    def of(self, *place: slice) -> "Moments":
        """Return those of some tokens and heads."""
        return Moments(self.alone[place], self.values[place], self.squares[place])


@dataclass(frozen=True, eq=False)
class _Errors:
    """Errors, what roundings of V less a number give to them at most, and own, what others give.

    Shapes: error, own [total_q, Hq, Dv].
    """

    error: np.ndarray
    own: np.ndarray
    variances: Moments
    largest: Moments

    def of(self, *place: slice) -> "_Errors":
        """Return those of some tokens and heads."""
        moments = (x.of(*place) for x in (self.variances, self.largest))
        return _Errors(self.error[place], self.own[place], *moments)

    def over_limit(self, squares: Array) -> np.ndarray:
        """Return the errors over the largest, given the sums of `largest` about a number.

        By Cauchy's inequality, no sum of V less the number is larger.
        """
        return np.abs(self.error) / (self.own + np.sqrt(self.largest.alone * squares))

    def number(self, low: Array, high: Array, axis: tuple[int, ...]) -> Array:
        """Return the number, from low to high, with which the errors are the likeliest.

        axis: over which a number is the same.
        """

        def unlikely(number: Array) -> np.ndarray:
            variance = self.variances.about(number) + self.own**2 / 12
            over = np.maximum(self.over_limit(self.largest.about(number)) - 1, 0.0)
            return (np.log(variance) + self.error**2 / variance + _NEVER * over).sum(axis)

        begin, end, best = low, high, low
        for _ in range(_PASSES):
            step = (end - begin) / (_TRIED - 1)
            at = np.argmin([unlikely(begin + i * step) for i in range(_TRIED)], 0)
            best = begin + at * step
            begin, end = np.maximum(best - step, low), np.minimum(best + step, high)
        return best


def moments(
    problem: Problem, policy: NumericPolicy, *, stored: bool = False
) -> tuple[Moments, Moments]:
    """Return the sums of the variances of roundings, and those of the largest roundings.

    stored: V less a number is rounded to P's format, too. The weight of a row's maximum is rounded,
    as it is where another number stands for that.
    """
    fmt = formats.named(policy.p)
    least = 2.0**ABOVE * fmt.smallest_subnormal

    def of_rows(rows: Rows) -> tuple[Array, Array]:
        alone, total = ZERO, ZERO
        for _, _, p, values in Frame(rows, narrow=False).weighted_blocks():
            xp = namespace(p)
            spacing = xp.where(p > 0, xp.clip(rounding.quantum(p, policy.p), least, None), 0.0)
            own = fmt.unit_roundoff * p
            variances = spacing**2 / 12 + stored * _OF_VALUES * own**2
            both = xp.stack([variances, xp.maximum(own, spacing / 2) + stored * own], 1)
            alone = alone + both.sum(-1)[..., None]
            total = total + both @ values[:, None]
        per = rows.softmax.divisor[:, None] ** moved(np.array([[[-2.0]], [[-1.0]]]), alone)
        return tuple(xp.swapaxes(x * per, 1, 2) for x in (alone, total))

    shape = problem.out_shape
    alone, total = problem.zeros(*shape[:2], 2, 1), problem.zeros(*shape[:2], 2, 2 * shape[2])
    for rows, found in over_rows(problem, of_rows):
        for target, values in zip((alone, total), found, strict=True):
            rows.put(target, values)
    alone, total = to_numpy(alone), to_numpy(total)
    values, squares = total[..., : shape[2]], total[..., shape[2] :]
    variances, largest = (Moments(*(x[:, :, i] for x in (alone, values, squares))) for i in (0, 1))
    return variances, largest


def about_mean(problem: Problem, policy: NumericPolicy) -> np.ndarray:
    """Return the standard deviation that P's rounding has about the mean of V, in any row's sum.

    Shapes: [total_q, Hq, Dv].
    """
    numbers = np.zeros((problem.batch, problem.kv_heads, problem.out_shape[-1]))
    for place, v in _values(problem):
        numbers[place] = v.mean(0)
    return np.sqrt(moments(problem, policy)[0].about_each(problem, numbers))


def fitted(
    problem: Problem, policy: NumericPolicy, truth: Array, error: Array, sigma: Array
) -> Iterator[tuple[np.ndarray, tuple[Twin, ...]]]:
    """Yield what roundings about numbers add to sigma, and twins that take these numbers off V.

    Shapes: truth, error, sigma and what is added [total_q, Hq, Dv].
    """
    largest = float(abs(problem.v_pool).max())
    if policy.p not in SIXTEEN or not largest:
        return
    spacing = rounding.quantum(truth, policy.out)
    if (sigma <= _NOTHING * spacing / 12**0.5).all():  # each row has one key, whose weight is 1
        return
    own = spacing + _SUMS * largest
    if (np.abs(error) > own + 4 * formats.named(policy.p).unit_roundoff * 2 * largest).any():
        return
    for stored in (False, True):
        variances, most = moments(problem, policy, stored=stored)
        errors = _Errors(error, own, variances, most)
        for by_channel in (True, False):
            numbers = _numbers(problem, errors, by_channel=by_channel)
            if (errors.over_limit(most.about_each(problem, numbers)) <= 1).all():
                more = np.sqrt(variances.about_each(problem, numbers))
                how: dict[str, Any] = {"centred": True, "centre": numbers}
                how["values"] = policy.p * stored
                yield more, tuple(replace(twin, **how) for twin in _KERNELS)


def _numbers(problem: Problem, errors: _Errors, *, by_channel: bool) -> np.ndarray:
    """Return the likeliest numbers: of each channel of a KV head, or one. Shapes: [B, Hkv, Dv]."""
    found = np.zeros((problem.batch, problem.kv_heads, errors.error.shape[-1]))
    ranges = {place: (v.min(0), v.max(0)) for place, v in _values(problem)}
    if not by_channel:
        low, high = (f(list(ranges.values())) for f in (np.amin, np.amax))
        some = slice(None, None, 1 + len(errors.error) // _ROWS)
        found[:] = errors.of(some).number(low, high, (0, 1, 2))
        return found
    for place, (tokens, heads) in _places(problem):
        some = slice(tokens.start, tokens.stop, 1 + (tokens.stop - tokens.start) // _ROWS)
        if place in ranges and tokens.stop > tokens.start:
            found[place] = errors.of(some, heads).number(*ranges[place], (0, 1))
    return found


def _values(problem: Problem) -> Iterator[tuple[tuple[int, int], np.ndarray]]:
    """Yield the values [L, Dv] of each request and KV head that has some."""
    for request, head in np.ndindex(problem.batch, problem.kv_heads):
        if problem.kv_lens[request]:
            yield (request, head), keys_of(problem, "v", head, request)


def _places(problem: Problem) -> Iterator[tuple[tuple[int, int], tuple[slice, slice]]]:
    """Yield each request and KV head, with its rows: tokens and query heads."""
    for request, head in np.ndindex(problem.batch, problem.kv_heads):
        tokens = slice(*(int(problem.q_ends[request + i]) for i in (0, 1)))
        heads = slice(head * problem.group, (head + 1) * problem.group)
        yield (request, head), (tokens, heads)
