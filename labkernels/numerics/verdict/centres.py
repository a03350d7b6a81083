"""Numbers that a kernel may take off V and add back to the output, found from the errors.

P's rounding multiplies V less such a number, and so does the rounding of V less it, where that is
stored in P's format. Both grow with the distance of the number from the values that a row sees.
The number is free within the range of V: one for each channel of a KV head, or one for all of V.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from labkernels import formats
from labkernels.numerics import rounding
from labkernels.numerics.arrays import ZERO, Array, namespace, to_numpy
from labkernels.numerics.truth.frame import Frame
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.truth.rows import Rows
from labkernels.numerics.truth.threads import over_rows
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import keys_of
from labkernels.numerics.verdict.twins import REFERENCES, SIXTEEN, STEADY, TWINS, Twin
from labkernels.policy import NumericPolicy

ABOVE = 4.5  # log2 units by which the number that stands for a row's maximum may exceed it
SIGMAS = 6.0  # most standard deviations of roundings about a number that an error may have
# The mean of spacing^2 / 12 over x^2 and the unit roundoff's square, for x in a binade.
_OF_VALUES = 0.375 / float(np.log(2)) / 3
_KERNELS = (TWINS[0], TWINS[5], *STEADY, REFERENCES[2])
_TINY = 1e-300  # in place of a division by 0
_TRIED, _PASSES = 17, 3  # numbers that are tried at once, each time closer together
_ROWS = 128  # tokens of a request from which its numbers follow


@dataclass(frozen=True, eq=False)
class Moments:
    """Variances of roundings of single keys, in a row's sum: alone, times V, and times V^2.

    others: variances of all else. Shapes: of_1 [total_q, Hq, 1], else
    [total_q, Hq, Dv].
    """

    of_1: np.ndarray
    of_v: np.ndarray
    of_squares: np.ndarray
    others: np.ndarray

    def about(self, number: Array) -> np.ndarray:
        """Return the variance of a row's sum of V less a number. Shapes: number [..., Dv]."""
        found = self.of_squares - 2 * number * self.of_v + number**2 * self.of_1
        return np.maximum(found, 0.0)

    def of(self, *place: slice) -> "Moments":
        """Return those of some tokens and heads."""
        return Moments(*(x[place] for x in (self.of_1, self.of_v, self.of_squares, self.others)))

    def number(self, error: Array, low: Array, high: Array, axis: tuple[int, ...]) -> np.ndarray:
        """Return the number, from low to high, with which the errors are the likeliest.

        axis: over which a number is the same.
        """
        begin, end, best = low, high, low
        for _ in range(_PASSES):
            tried = np.linspace(begin, end, _TRIED)
            unlikely = [self._unlikely(number, error, axis) for number in tried]
            step = (end - begin) / (_TRIED - 1)
            at = np.argmin(unlikely, 0)
            best = begin + at * step
            begin, end = np.maximum(best - step, low), np.minimum(best + step, high)
        return best

    def _unlikely(self, number: Array, error: Array, axis: tuple[int, ...]) -> np.ndarray:
        variance = self.about(number) + self.others + _TINY
        return (np.log(variance) + error**2 / variance).sum(axis)


def moments(problem: Problem, policy: NumericPolicy, sigma: Array, *, stored: bool) -> Moments:
    """Return the variances; stored: V less a number is rounded to P's format, too.

    The weight of a row's maximum is rounded, as it is where another number stands for that.
    """
    fmt = formats.named(policy.p)
    least = 2.0**ABOVE * fmt.smallest_subnormal

    def of_rows(rows: Rows) -> tuple[Array, Array]:
        ones, total = ZERO, ZERO
        for _, _, p, values in Frame(rows, narrow=False).weighted_blocks():
            xp = namespace(p)
            spacing = xp.clip(rounding.quantum(p, policy.p), least, None)
            squares = xp.where(p > 0, spacing, 0.0) ** 2 / 12
            squares = squares + stored * _OF_VALUES * (fmt.unit_roundoff * p) ** 2
            ones, total = ones + squares.sum(-1)[..., None], total + squares @ values
        per = rows.softmax.divisor**-2.0
        return ones * per, total * per

    shape = problem.out_shape
    ones, total = problem.zeros(*shape[:2], 1), problem.zeros(*shape[:2], 2 * shape[2])
    for rows, found in over_rows(problem, of_rows):
        for target, values in zip((ones, total), found, strict=True):
            rows.put(target, values)
    total = to_numpy(total)
    return Moments(to_numpy(ones), total[..., : shape[2]], total[..., shape[2] :], sigma**2)


def fitted(
    problem: Problem, policy: NumericPolicy, error: Array, sigma: Array, truth: Array
) -> Iterator[tuple[np.ndarray, tuple[Twin, ...]]]:
    """Yield standard deviations about numbers that explain all errors, and twins that take them off.

    Shapes: error, sigma and the standard deviations [total_q, Hq, Dv].
    """
    most = 2 * float(abs(problem.v_pool).max())
    few = SIGMAS * 2 * formats.named(policy.p).unit_roundoff if policy.p in SIXTEEN else 0.0
    if not (np.abs(error) <= few * most).all():
        return
    values = {
        place: keys_of(problem, "v", place[1], place[0])
        for place in np.ndindex(problem.batch, problem.kv_heads)
        if problem.kv_lens[place[0]]
    }
    for stored in (False, True):
        others = np.sqrt(rounding.quantum(truth, policy.out)**2/12 + (2.0**-22*most)**2)
        known = moments(problem, policy, others, stored=stored)
        for shared in (False, True):
            numbers = _numbers(problem, known, error, values, shared=shared)
            more = np.zeros(error.shape)
            for place, rows in _places(problem):
                more[rows] = np.sqrt(known.of(*rows).about(numbers[place]))
            if (np.abs(error) <= SIGMAS * np.hypot(more, sigma)).all():
                how = {"centred": True, "centre": numbers, "values": policy.p * stored}
                yield more, tuple(replace(twin, **how) for twin in _KERNELS)


def _numbers(
    problem: Problem, known: Moments, error: Array, values: dict, *, shared: bool
) -> np.ndarray:
    """Return the numbers; shared: one for all of V. Shapes: [batch, Hkv, Dv]."""
    found = np.zeros((problem.batch, problem.kv_heads, error.shape[-1]))
    if shared:
        low, high = (f([f(v) for v in values.values()]) for f in (np.amin, np.amax))
        some = slice(None, None, max(1, len(error) // _ROWS))
        found[:] = known.of(some).number(error[some], low, high, (0, 1, 2))
        return found
    for place, (tokens, heads) in _places(problem):
        some = slice(tokens.start, tokens.stop, max(1, (tokens.stop - tokens.start) // _ROWS))
        if place in values and tokens.stop > tokens.start:
            v = values[place]
            given = error[some, heads], v.min(0), v.max(0)
            found[place] = known.of(some, heads).number(*given, (0, 1))
    return found


def _places(problem: Problem) -> Iterator[tuple[tuple[int, int], tuple[slice, slice]]]:
    """Yield each request and KV head, with its rows: tokens and query heads."""
    for request, head in np.ndindex(problem.batch, problem.kv_heads):
        tokens = slice(*(int(problem.q_ends[request + i]) for i in (0, 1)))
        heads = slice(head * problem.group, (head + 1) * problem.group)
        yield (request, head), (tokens, heads)
