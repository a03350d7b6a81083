"""A mistake that concerns some keys alone: up to one, from one on, or in one tile.

Any mistake that gives scores and values can concern some keys alone. Running sums give, for every
key at once, the row that results if the mistake ends or begins there. Functions take sheets and a
misfit, as those of `fitted` do.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit, best, run_words
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.search import LEFT
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet, part

_TILES = (16, 32, 64, 128)
_NEAREST = 6  # mistakes that are judged
_SCREENED = 24  # mistakes that are held against all channels of a row, not some directions alone
_DIRECTIONS = 16
_NEAR = 4  # keys by which the end of a run may be off


def of_mistakes(
    sheets: list[Sheet], misfit: Misfit, mistakes: Iterable[Mistake]
) -> Iterator[Mistake]:
    """Yield the mistake of some keys alone that fits best, among those nearest to one row."""
    worst = sheets[0]
    row = int((((worst.out - worst.truth) / worst.sigma) ** 2).mean(1).argmax())
    sheet = part(worst, slice(row, row + 1))
    along = _Directions.of(sheet)
    screened: list[tuple[float, int, Mistake]] = []
    apart = set()  # mistakes that do not attend, and so have no keys of their own
    for mistake in mistakes:
        of = getattr(mistake.outputs, "__code__", None)
        given = None if of in apart else sheet.attended(mistake.outputs)
        if given is None and of is not None and mistake.precision:
            apart.add(of)
        if given is not None:
            screened.append((along.least(sheet, *given), len(screened), mistake))
    tried: list[tuple[float, int, Mistake, int, int]] = []
    for _, i, mistake in sorted(screened, key=lambda each: each[:2])[:_SCREENED]:
        given = sheet.attended(mistake.outputs)
        if given is not None:
            miss, first, last = _nearest(sheet, *given)
            tried.append((miss, i, mistake, first, last))
    tried = sorted(tried, key=lambda each: each[:2])[:_NEAREST]
    every = [_of_run(sheet, mistake, first, last) for _, _, mistake, first, last in tried]
    for found in best(misfit, every):
        _, _, mistake, first, last = tried[every.index(found)]
        if misfit(found.outputs) > LEFT**2:
            ends = [(a, last) for a in _beside(first, sheet.kv_len)]
            ends += [(first, b) for b in _beside(last, sheet.kv_len)]
            others = [_of_run(sheet, mistake, a, b) for a, b in ends if a < b]
            yield from best(misfit, [found, *others])
        else:
            yield found


def _beside(end: int, longest: int) -> list[int]:
    """Return ends near one that a row chose: keys of no weight in it may lie between.

    The first key, and the end of all keys, are where a run has no end.
    """
    if not 0 < end < longest:
        return []
    return [x for x in range(end - _NEAR, end + _NEAR + 1) if x != end and 0 < x < longest]


def _of_run(sheet: Sheet, mistake: Mistake, first: int, last: int) -> Mistake:
    where = "; ".join(filter(None, (mistake.where, _words(sheet, first, last))))
    outputs = _of_some(mistake.outputs, first, last, sheet.kv_len)
    return Mistake(mistake.name, where, outputs, mistake.precision, noise=mistake.noise)


@dataclass(frozen=True)
class _Directions:
    """A right row along some directions of the channels, in units of sigma.

    Shapes: ways [Dv, 16]; values [16, L]; right, those values and 1 times the weights, [17, L];
    out [16]; first, last: the runs of keys that are tried [X].
    """

    ways: np.ndarray
    values: np.ndarray
    right: np.ndarray
    total: np.ndarray
    out: np.ndarray
    first: np.ndarray
    last: np.ndarray

    @classmethod
    def of(cls, sheet: Sheet) -> "_Directions":
        """Return the directions of a sheet of one row."""
        n = sheet.v.shape[1]
        ways = np.random.default_rng(2).standard_normal((n, min(n, _DIRECTIONS)))
        ways = np.linalg.qr(ways)[0] / sheet.sigma[0][:, None]
        values = np.ascontiguousarray((sheet.v @ ways).T)
        right = np.concatenate([values, np.ones((1, sheet.kv_len))]) * sheet.weights[0]
        return cls(ways, values, right, right.sum(1), sheet.out[0] @ ways, *_runs(sheet.kv_len))

    def least(self, sheet: Sheet, scores: Array, v: Array) -> float:
        """Return the least mean z^2 along these directions of a mistake in any run of keys."""
        top = sheet.scores.max()
        m = max(scores.max(), top)
        values = self.values if v is sheet.v else self.ways.T @ v.T
        p, less = np.exp2(scores[0] - m), np.exp2(top - m)
        sums = np.zeros((len(values) + 1, len(p) + 1))
        change = np.concatenate([values * p, p[None]]) - less * self.right
        np.cumsum(change, 1, out=sums[:, 1:])
        found = less * self.total[:, None] + sums[:, self.last] - sums[:, self.first]
        with np.errstate(invalid="ignore", divide="ignore"):
            miss = ((found[:-1] / found[-1] - self.out[:, None]) ** 2).mean(0)
        return float(np.where(np.isfinite(miss), miss, np.inf).min())


def _runs(n: int) -> tuple[Array, Array]:
    """Return where runs begin and end: from the first key, to the last key, and tiles."""
    key = np.arange(n + 1)
    runs = [(0 * key, key), (key, 0 * key + n)]
    for size in _TILES:
        starts = np.arange(0, n, size)
        runs.append((starts, np.minimum(starts + size, n)))
    first, last = (np.concatenate(x) for x in zip(*runs, strict=True))
    return first, last


def _words(sheet: Sheet, first: int, last: int) -> str:
    if first == 0 and last >= sheet.kv_len:
        return ""
    if last >= sheet.kv_len:
        return f"of keys from {first} on alone"
    return f"of {run_words(first, last - first)} alone"


def _nearest(sheet: Sheet, scores: Array, v: Array) -> tuple[float, int, int]:
    """Return mean z^2, first and last of the run of keys whose mistake comes nearest to the row."""
    m = max(scores.max(), sheet.scores.max())
    right, wrong = (
        np.concatenate([p[0, :, None] * x, p[0, :, None]], 1)
        for p, x in ((np.exp2(sheet.scores - m), sheet.v), (np.exp2(scores - m), v))
    )
    change = np.concatenate([0 * right[:1], np.cumsum(wrong - right, 0)])
    total, (first, last) = right.sum(0), _runs(sheet.kv_len)
    sums = total + change[last] - change[first]
    with np.errstate(invalid="ignore", divide="ignore"):
        means = sums[:, :-1] / sums[:, -1:]
        miss = (((means - sheet.out) / sheet.sigma) ** 2).mean(1)
    i = int(np.where(np.isfinite(miss), miss, np.inf).argmin())
    return float(miss[i]), int(first[i]), int(last[i])


def _of_some(
    outputs: Callable[..., Any], first: int, last: int, longest: int
) -> Callable[..., Any]:
    def of_some(sheet: Sheet) -> Array | None:
        given = sheet.attended(outputs)
        if given is None:
            return None
        key = np.arange(sheet.kv_len)
        some = (key >= first) & ((key < last) | (last >= longest))
        scores, v = given
        return sheet.attend(
            np.where(some, scores, sheet.scores), np.where(some[:, None], v, sheet.v)
        )

    return of_some
