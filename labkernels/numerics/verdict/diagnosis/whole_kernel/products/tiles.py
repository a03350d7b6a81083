"""Keys less a vector of their tile, of any size: its mean, or its first key.

Such a vector gives whole tiles another weight in each row, as a wrong merge of splits does; but a
merge needs a number for each tile and row, and this needs none. Functions take sheets and a misfit,
as those of `fitted` do.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.products import screens
from labkernels.numerics.verdict.diagnosis.whole_kernel.products.screens import Rows
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Cut, Sheet

_EVERY, _STEP, _LARGEST = 128, 8, 1024  # keys of a tile: all sizes up to one, then every eighth
_COUNTS = (2, 3, 4, 5, 6, 7, 8, 16)
_JUDGED = 4


def _mean(x: Array, starts: Array) -> np.ndarray:
    return np.add.reduceat(x, starts) / np.diff(starts, append=len(x))[:, None]


def _first(x: Array, starts: Array) -> np.ndarray:
    return x[starts]


_VECTORS: dict[str, tuple[str, float, Callable[..., Any]]] = {
    "mean": ("K less its mean", -1.0, _mean),
    "mean, which is added": ("K with its mean added", 1.0, _mean),
    "first key": ("K less its tile's first key", -1.0, _first),
}


def _cuts(n: int) -> Iterator[Cut]:
    sizes = [*range(2, _EVERY + 1), *range(_EVERY + _STEP, _LARGEST + 1, _STEP)]
    yield from (Cut(size) for size in sizes if size < n)
    yield from (Cut(-count) for count in _COUNTS if count < n)


def _moved(products: Array, cut: Cut, vector: str) -> np.ndarray:
    """Return products q k [L] of one row if each key has its tile's vector added. Shapes: [L]."""
    starts = cut.starts(len(products))
    _, sign, of = _VECTORS[vector]
    each = of(products[:, None], starts)[:, 0]  # a product with a mean is the mean of products
    return products + sign * each.repeat(np.diff(starts, append=len(products)))


def of_tiles(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """K lacks, or has twice, a vector of each tile."""
    first, *others = screens.rows_of(sheets)
    ways = [(cut, vector) for cut in _cuts(first.keys) for vector in _VECTORS]
    if not ways:
        return

    def missed(row: Rows, points: Array) -> Array:
        products = (row.sheet.q @ row.sheet.k.T)[0]
        return row.of_products(np.stack([_moved(products, *ways[i]) for i in points]))

    near = screens.Nearest(_JUDGED, others)
    every = np.arange(len(ways))
    near.add(missed(first, every), 0, every)
    for i in near.best(missed):
        cut, vector = ways[i]
        name = _VECTORS[vector][0]
        where = f"that of {cut.words}, of each channel"
        yield Mistake(name, where, lambda sheet, way=ways[i]: _read(sheet, *way), cost=1.5)


def _read(sheet: Sheet, cut: Cut, vector: str) -> Array:
    products = np.stack([_moved(p, cut, vector) for p in sheet.q @ sheet.k.T])
    return sheet.attend(sheet.masked(sheet.shaped(products)))


ALL = (of_tiles,)
