"""The run of keys that each row sees: its end and its start, fitted row by row.

Masks may be cut to tiles and windows to pages. By any such rule, a row shows where its keys
end. Functions take sheets and a misfit, as those of `fitted` do.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet

_SHOWN = 3  # rows whose run the name gives
_TILES = (4, 8, 16, 32, 64, 128, 256)


def of_ends(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Each row sees keys up to a last one, which the mask may hide; it is fitted."""
    words = _told(sheets, _end, "sees keys up to")
    tile = _tile(sheets, _end)
    where = f"the keys of whole tiles of {tile}; {words}" if tile else words
    yield Mistake("another mask that ends elsewhere", where, _seeing(_end, np.less))


def of_starts(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Each row sees keys from a first one on, which is fitted."""
    words = _told(sheets, _start, "sees keys from")
    tile = _tile(sheets, _start)
    where = f"cut to multiples of {tile}; {words}" if tile else words
    yield Mistake("window that was not asked for", where, _seeing(_start, np.greater_equal))


def _nearest(sheet: Sheet, row: int, sums: Array, totals: Array) -> int:
    """Return the index of the running mean nearest to a row, by the even channels."""
    with np.errstate(invalid="ignore", divide="ignore"):
        means = sums[:, ::2] / totals[:, None]
        miss = (((means - sheet.out[row, ::2]) / sheet.sigma[row, ::2]) ** 2).sum(1)
    return int(np.where(np.isfinite(miss), miss, np.inf).argmin())


def _end(sheet: Sheet, row: int) -> int:
    p = np.exp2(sheet.raw[row] - sheet.raw[row].max())
    return _nearest(sheet, row, np.cumsum(p[:, None] * sheet.v, 0), np.cumsum(p)) + 1


def _start(sheet: Sheet, row: int) -> int:
    n = int(sheet.n_keys[row])
    p, v = sheet.weights[row, :n][::-1], sheet.v[:n][::-1]
    return n - 1 - _nearest(sheet, row, np.cumsum(p[:, None] * v, 0), np.cumsum(p))


def _seeing(of: Callable[[Sheet, int], int], holds: Callable[..., Any]) -> Callable[..., Any]:
    def outputs(sheet: Sheet) -> Array:
        ends = np.array([of(sheet, row) for row in range(len(sheet.tokens))])[:, None]
        scores = sheet.raw if holds is np.less else sheet.scores
        return sheet.attend(np.where(holds(np.arange(sheet.kv_len), ends), scores, -np.inf))

    return outputs


def _told(sheets: list[Sheet], of: Callable[..., Any], words: str) -> str:
    sheet = sheets[0]
    rows = np.unique(np.linspace(0, len(sheet.tokens) - 1, _SHOWN).astype(int))
    first = sheet.problem.q_ends[sheet.request]
    said = [f"query {int(sheet.tokens[r] - first)} {words} {of(sheet, int(r))}" for r in rows]
    return ", ".join(said)


def _tile(sheets: list[Sheet], of: Callable[..., Any]) -> int:
    """Return the largest tile at whose multiples, or at right places, all runs end; 0 if none."""
    found = [
        (of(sheet, row), sheet.kv_len, int(sheet.n_keys[row]))
        for sheet in sheets
        for row in range(len(sheet.tokens))
    ]
    cut = [end for end, *natural in found if end not in (0, *natural)]
    fitting = [n for n in _TILES if cut and all(end % n == 0 for end in cut)]
    return max(fitting, default=0)


ALL = (of_ends, of_starts)
