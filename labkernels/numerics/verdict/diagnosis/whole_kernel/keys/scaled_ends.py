"""K and V by one factor for the first keys or the last ones, as a cache without its scales has it.

The function takes sheets and a misfit, as those of `fitted` do.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit, least
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.products.screens import worst
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet

_FACTORS = np.concatenate([np.geomspace(0.1, 0.97, 24), np.geomspace(1.03, 10, 24)])
_WIDTH = 1.1  # by how much the fitted factor may differ from the nearest one that is tried
_STEPS = 9
_JUDGED = 3


def of_ends(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """K and V have a factor up to a key, or from it on; both numbers are fitted."""
    variant = sheets[0].problem.variant
    if variant is not None and (variant.soft_cap is not None or variant.alibi is not None):
        return
    rows = worst(sheets)
    longest = min(row.kv_len for row in rows)
    tried = []
    for first in (True, False):
        for factor in _FACTORS.tolist():
            total = _missed_by_all(rows, factor, first, longest)
            at = int(np.argmin(total))
            tried.append((float(total[at]), first, factor))
    for _, first, factor in sorted(tried)[:_JUDGED]:
        end = 0
        for _ in range(2):  # the key follows from the factor, and the factor from the key
            end = 1 + int(np.argmin(_missed_by_all(rows, factor, first, longest)))
            grid = math.log(factor) + np.linspace(-1, 1, _STEPS) * math.log(_WIDTH)
            tries = lambda x, n=end, f=first: _outputs(math.exp(x), n, f)  # noqa: E731
            factor = math.exp(least(misfit, tries, grid))
        where = f"times {factor:.4g}; keys {f'up to {end - 1}' if first else f'from {end} on'}"
        yield Mistake("K and V by a factor", where, _outputs(factor, end, first), cost=2.0)


def _missed_by_all(rows: list[Sheet], factor: float, first: bool, longest: int) -> np.ndarray:
    return np.sum([_missed(row, factor, first)[: longest - 1] for row in rows], axis=0)


def _missed(row: Sheet, factor: float, first: bool) -> np.ndarray:
    """Return mean z^2 of a row, with the factor for 1, 2, ... keys, or for all behind them."""
    s = np.where(row.hidden, -np.inf, row.raw)[0]
    top = max(float(s.max()), float((factor * s).max()), float(row.sink[0, 0]))
    own = _terms(row, s - top, 1.0)
    other = _terms(row, np.where(row.hidden[0], -np.inf, factor * row.raw[0]) - top, factor)
    before, behind = (other, own) if first else (own, other)
    sums = before.cumsum(0)[:-1] + behind[::-1].cumsum(0)[::-1][1:]
    below = sums[:, -1:] + np.exp2(row.sink[0, 0] - top)
    z2 = (((sums[:, :-1] / below - row.out[0]) / row.sigma[0]) ** 2).mean(1)
    return np.where(np.isfinite(z2), z2, np.inf)


def _terms(row: Sheet, s: Array, factor: float) -> np.ndarray:
    p = np.exp2(s)[:, None]
    return np.concatenate([p * factor * row.v, p], 1)


def _outputs(factor: float, end: int, first: bool) -> Callable[[Sheet], Array]:
    def outputs(sheet: Sheet) -> Array:
        some = (np.arange(sheet.kv_len) < end) == first
        each = np.where(some, factor, 1.0)
        return sheet.attend(sheet.masked(sheet.raw * each), sheet.v * each[:, None])

    return outputs


ALL = (of_ends,)
