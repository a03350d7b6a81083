"""A mistake that concerns some keys alone: up to one, from one on, or in one tile.

Any mistake that gives scores and values can concern some keys alone. Running sums give, for every
key at once, the row that results if the mistake ends or begins there. Functions take sheets and a
misfit, as those of `fitted` do.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit, best, run_words
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet, part

_TILES = (16, 32, 64, 128)
_NEAREST = 6  # mistakes that are judged


def of_mistakes(
    sheets: list[Sheet], misfit: Misfit, mistakes: Iterable[Mistake]
) -> Iterator[Mistake]:
    """Yield the mistake of some keys alone that fits best, among those nearest to one row."""
    worst = sheets[0]
    row = int((((worst.out - worst.truth) / worst.sigma) ** 2).mean(1).argmax())
    sheet = part(worst, slice(row, row + 1))
    tried: list[tuple[float, int, Mistake, int, int]] = []
    for mistake in mistakes:
        given = sheet.attended(mistake.outputs)
        if given is None:
            continue
        miss, first, last = _nearest(sheet, *given)
        tried.append((miss, len(tried), mistake, first, last))
    tried = sorted(tried, key=lambda each: each[:2])[:_NEAREST]
    found = []
    for _, _, mistake, first, last in tried:
        where = "; ".join(filter(None, (mistake.where, _words(sheet, first, last))))
        outputs = _of_some(mistake.outputs, first, last, sheet.kv_len)
        found.append(Mistake(mistake.name, where, outputs, mistake.precision, noise=mistake.noise))
    yield from best(misfit, found)


def _words(sheet: Sheet, first: int, last: int) -> str:
    if last >= sheet.kv_len:
        return f"of keys from {first} on alone"
    return f"of {run_words(first, last - first)} alone"


def _nearest(sheet: Sheet, scores: Array, v: Array) -> tuple[float, int, int]:
    """Return mean z^2, first and last of the run of keys whose mistake comes nearest to the row."""
    n, m = sheet.kv_len, max(scores.max(), sheet.scores.max())
    right, wrong = (
        np.concatenate([p[0, :, None] * x, p[0, :, None]], 1)
        for p, x in ((np.exp2(sheet.scores - m), sheet.v), (np.exp2(scores - m), v))
    )
    change = np.concatenate([0 * right[:1], np.cumsum(wrong - right, 0)])
    total, key = right.sum(0), np.arange(n + 1)
    runs = [(0 * key, key), (key, 0 * key + n)]
    for size in _TILES:
        starts = np.arange(0, n, size)
        runs.append((starts, np.minimum(starts + size, n)))
    first, last = (np.concatenate(x) for x in zip(*runs, strict=True))
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
