"""What a row would sum if its keys were read otherwise: weights above and below, and values."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet

_MOST = 900.0  # largest exponent in log2 units: more would overflow


@dataclass(frozen=True, eq=False)
class Terms:
    """Weights with which each key enters the output and the denominator, and its values.

    The weights are relative to the row's right maximum. Shapes: above, below [R, L]; v [L, Dv].
    """

    above: np.ndarray
    below: np.ndarray
    v: np.ndarray

    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        """The sums over all keys. Shapes: [R, Dv], [R, 1]."""
        return self.above @ self.v, self.below.sum(1, keepdims=True)


@dataclass(frozen=True, eq=False)
class Reading:
    """One way to read keys wrongly, for any set of keys.

    of: returns the terms of a sheet, None if the reading does not apply. cost: grows with the
    number of choices, so that the simplest of several readings comes first. scalable: a fitted
    share of the right reading is replaced.
    """

    name: str
    where: str
    of: Callable[..., Any]
    cost: float = 1.0
    precision: bool = False
    scalable: bool = False


def right(sheet: Sheet) -> Terms:
    """Return the terms of a right kernel."""
    return Terms(sheet.weights, sheet.weights, sheet.v)


def by_scores(sheet: Sheet, scores: Array, v: Array | None = None) -> Terms:
    """Return terms of other scores [R, L] in log2 units; hidden keys stay hidden."""
    return by_masked(sheet, sheet.masked(scores), v)


def by_masked(sheet: Sheet, scores: Array, v: Array | None = None) -> Terms:
    """Return terms of other scores, -inf where a row does not see a key."""
    p = np.exp2(np.minimum(scores - sheet.scores.max(1, keepdims=True), _MOST))
    return Terms(p, p, sheet.v if v is None else v)


def by_keys(sheet: Sheet, k: Array, v: Array | None = None, q: Array | None = None) -> Terms:
    """Return terms of other keys [L, D], values or queries [R, D]."""
    q = sheet.q if q is None else q
    return by_scores(sheet, sheet.shaped(q @ k.T), v)


def by_some_channels(sheet: Sheet, q: Array, k: Array, some: Array) -> Terms:
    """Return terms of products whose channels `some` have other q [R, d] and k [L, d], d of D."""
    if "products" not in sheet.notes:
        sheet.notes["products"] = sheet.q @ sheet.k.T
    rest = sheet.notes["products"] - sheet.q[:, some] @ sheet.k[:, some].T
    return by_scores(sheet, sheet.shaped(rest + q @ k.T))


def by_values(sheet: Sheet, v: Array) -> Terms:
    """Return terms of other values [L, Dv]."""
    return Terms(sheet.weights, sheet.weights, v)


def sink_of(sheet: Sheet) -> Any:
    """Return the sink's part of the denominator. Shapes: [R, 1]."""
    return np.exp2(sheet.sink - sheet.scores.max(1, keepdims=True))


def joined(sheet: Sheet, other: Terms, some: Array, factor: float = 1.0) -> np.ndarray:
    """Return the rows if other terms replace a share of some keys. Shapes: some [R, L], bool."""
    own = right(sheet)
    share = np.where(some, factor, 0.0)
    if other.v is own.v:
        above = (own.above * (1 - share) + other.above * share) @ own.v
    else:
        above = own.above * (1 - share) @ own.v + other.above * share @ other.v
    below = own.below * (1 - share) + other.below * share
    return above / (below.sum(1, keepdims=True) + sink_of(sheet))
