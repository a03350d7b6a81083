"""A few rows along a few directions of the channels, on which all points of a product are tried."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet, part

_DIRECTIONS = 16
_ROWS = 3
_TIMES = 16
_EFFECTIVE = 6.0  # keys that share the weight of a row that tells mistakes apart
_CLEARLY = 20.0  # mean z^2 of a row that is clearly wrong


@dataclass(frozen=True, eq=False)
class Rows:
    """One row: what its keys have, and 0 for a key that is read as 0, which comes last.

    Shapes: exponentials 2^(s - m), of scores without a bias [n + 1]; own, 2^bias, 0 where hidden
    [n]; values, along directions and in units of sigma [n + 1, W]; out, alike [W]; weights, right
    ones [n]; ways [Dv, W]. l: the denominator; sink: its part that no key has.
    """

    sheet: Sheet
    exponentials: np.ndarray
    own: np.ndarray
    values: np.ndarray
    out: np.ndarray
    weights: np.ndarray
    ways: np.ndarray
    l: float
    sink: float

    @property
    def keys(self) -> int:
        """How many keys the row has, hidden ones too."""
        return len(self.weights)

    def missed(self, sums: Array, below: Array) -> np.ndarray:
        """Return mean z^2 of other sums [N, W] over denominators [N]. Shapes: [N]."""
        with np.errstate(all="ignore"):
            z2 = ((sums / below[:, None] - self.out) ** 2).mean(1)
        return np.where(np.isfinite(z2), z2, np.inf)

    def of_products(self, products: Array) -> np.ndarray:
        """Return mean z^2 of other products q k [N, n]. Shapes: [N]."""
        sheet = self.sheet
        shaped = sheet.shaped(products) if sheet.problem.variant is None else self._shaped(products)
        scores = np.where(sheet.hidden, -np.inf, shaped)
        top = np.maximum(scores.max(1, keepdims=True), sheet.sink)
        with np.errstate(all="ignore"):
            p = np.exp2(scores - top)
        below = p.sum(1) + np.exp2(sheet.sink - top)[:, 0]
        return self.missed(p @ self.values[:-1], below)

    def _shaped(self, products: Array) -> np.ndarray:
        return np.concatenate([self.sheet.shaped(one[None]) for one in products])


def worst(sheets: list[Sheet], most: int = _ROWS) -> list[Sheet]:
    """Return the most telling row of each of the first sheets of one length, as sheets of a row."""
    alike = [sheet for sheet in sheets if sheet.kv_len == sheets[0].kv_len][:most]
    found = []
    for sheet in alike:
        row = telling(sheet)[0]
        found.append(part(sheet, slice(row, row + 1)))
    return found


def telling(sheet: Sheet) -> np.ndarray:
    """Return the numbers of a sheet's rows, the worst first, but last those of hardly any keys.

    A row of one key is explained by whatever leaves this key alone.
    """
    z = (((sheet.out - sheet.truth) / sheet.sigma) ** 2).mean(1)
    z = np.where(np.isfinite(z), z, -1.0)
    keys = sheet.weights.sum(1) ** 2 / (sheet.weights**2).sum(1)
    few = (keys < min(_EFFECTIVE, float(keys.max()))) | (z < _CLEARLY)
    return np.lexsort((-z, few))


def rows_of(sheets: list[Sheet], most: int = _ROWS) -> list[Rows]:
    """Return the most telling row of each of the first sheets of one length."""
    return [_row(one) for one in worst(sheets, most)]


def _row(one: Sheet) -> Rows:
    width = one.out.shape[1]
    random = np.random.default_rng(1).standard_normal((width, min(width, _DIRECTIONS)))
    ways = np.linalg.qr(random)[0] / np.maximum(one.sigma[0], 1e-300)[:, None]
    bias = one.shaped(np.zeros_like(one.raw))[0]
    plain = one.raw[0] - bias
    top = plain.max()
    own = np.where(one.hidden[0], 0.0, np.exp2(bias - bias.max()))
    exponentials = np.exp2(np.append(plain, 0.0) - top)
    values = np.concatenate([one.v, np.zeros((1, width))]) @ ways
    weights = exponentials[:-1] * own
    sink = float(np.exp2(one.sink[0, 0] - top - bias.max()))
    l = float(weights.sum()) + sink
    return Rows(one, exponentials, own, values, one.out[0] @ ways, weights, ways, l, sink)


class Nearest:
    """The points of a product that leave least on a first row, and then on other rows."""

    def __init__(self, most: int, others: list[Rows]):
        """most: how many points are wanted; others: the rows that choose among ten times more."""
        self.most, self.others = most, others
        self.misses, self.numbers = np.zeros(0), np.zeros(0, int)
        self.points: Any = None

    def add(self, misses: Array, first: int, points: Array) -> None:
        """Take points [N, ...] with what they leave on the first row [N], numbered from `first`."""
        some = np.argsort(misses, kind="stable")[: _TIMES * self.most]
        every = np.concatenate([self.misses, misses[some]])
        keep = np.argsort(every, kind="stable")[: _TIMES * self.most]
        self.misses = every[keep]
        self.numbers = np.concatenate([self.numbers, some + first])[keep]
        old = points[:0] if self.points is None else self.points
        self.points = np.concatenate([old, points[some]])[keep]

    def best(self, missed: Callable[..., Array]) -> list[int]:
        """Return the numbers of the points that leave least on all rows.

        missed: what points leave on another row [N].
        """
        if self.points is None:
            return []
        total = self.misses
        for row in self.others:
            total = total + missed(row, self.points)
        order = np.argsort(total, kind="stable")[: self.most]
        return [int(self.numbers[i]) for i in order if np.isfinite(total[i])]
