"""Weights of a part of the keys by a factor, in both sums or one: left out, twice, or any other.

Functions take sheets and a misfit, as those of `fitted` do.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.products import parts, screens
from labkernels.numerics.verdict.diagnosis.whole_kernel.products.screens import Rows
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet

_NUMBERS = 2**24  # keys of all parts
_JUDGED = 4
_NEARLY = 2e-3  # distance of a factor from a whole one
_SUMS = {"both sums": (1, 1), "the output alone": (1, 0), "the denominator alone": (0, 1)}
_NAMES = {
    ("both sums", 0.0): "keys left out",
    ("both sums", 2.0): "keys counted twice",
    ("the output alone", 0.0): "V read as 0",
    ("the output alone", 2.0): "V counted twice",
    ("the denominator alone", 0.0): "keys missing in the denominator",
    ("the denominator alone", 2.0): "keys twice in the denominator",
}
_OTHERS = {
    "both sums": "weights of keys by a factor, as of a bias of their scores",
    "the output alone": "V by a factor",
    "the denominator alone": "denominator with keys by a factor",
}


def _some(n: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield parts of the keys: places of tiles, and of some tiles. Shapes: [n], bool."""
    count = 0
    for tiles in parts.every(n):
        for words, keys in parts.scopes(tiles, whole=tiles.count <= 8):
            if (count := count + n) > _NUMBERS:
                return
            if 0 < keys.sum() < n:
                yield words, keys


def _factors(row: Rows, flags: Array, of: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the factor less 1 that fits best on each part, and what it leaves. Shapes: [S]."""
    above = of[0] * ((flags * row.weights) @ row.values[:-1])
    below = of[1] * (flags @ row.weights)
    whole = row.weights @ row.values[:-1]
    each = above - below[:, None] * row.out
    side = row.out * row.l - whole
    with np.errstate(all="ignore"):
        x = each @ side / (each**2).sum(1)
    return x, row.missed(whole + x[:, None] * above, row.l + x * below)


def of_parts(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """A part of the keys has a factor, which is fitted."""
    first, *others = screens.rows_of(sheets)
    some = list(_some(first.keys))
    if not some:  # a row sees too few keys to have parts
        return
    words, keys = zip(*some, strict=True)
    flags = np.stack(keys)
    known = {first.keys: dict(zip(words, keys, strict=True))}
    for said, of in _SUMS.items():
        factor, left = _factors(first, flags, of)
        near = screens.Nearest(_JUDGED, others)
        near.add(left, 0, np.arange(len(flags)))

        def missed(row: Rows, points: Array, of: tuple[int, int] = of) -> Array:
            return _factors(row, flags[points], of)[1]

        for i in near.best(missed):
            times = 1 + float(factor[i])
            whole = next((x for x in (0.0, 2.0) if abs(times - x) <= _NEARLY), None)
            times = times if whole is None else whole
            name = _OTHERS[said] if whole is None else _NAMES[said, whole]
            where = f"times {times:.4g}, " * (whole is None) + words[i]
            outputs = partial(_by, known=known, words=words[i], times=times, of=of)
            yield Mistake(name, where, outputs, cost=2.0 + (whole is None))


def _by(
    sheet: Sheet,
    known: dict[int, dict[str, np.ndarray]],
    words: str,
    times: float,
    of: tuple[int, int],
) -> Array | None:
    """Return rows in which a part of the keys has a factor; known: parts by their words, by n."""
    n = sheet.kv_len
    if n not in known:
        known[n] = dict(_some(n))
    keys = known[n].get(words)
    if keys is None:
        return None
    p, more = sheet.weights, np.where(keys, times - 1, 0.0)
    sink = np.exp2(sheet.sink - sheet.scores.max(1, keepdims=True))
    l = (p * (1 + of[1] * more)).sum(1, keepdims=True) + sink
    return (p * (1 + of[0] * more)) @ sheet.v / l


ALL = (of_parts,)
