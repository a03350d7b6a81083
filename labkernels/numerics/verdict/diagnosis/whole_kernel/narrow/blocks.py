"""K, V or Q in few bits, with a scale for each block: the right one, a rounded or another's.

Functions take sheets and a misfit, as those of `fitted` do. All ways are tried on some keys and
channels of one row; those that come nearest are tried on all keys of the row, and then judged.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit
from labkernels.numerics.verdict.diagnosis.whole_kernel.narrow import ways
from labkernels.numerics.verdict.diagnosis.whole_kernel.narrow.ways import Some, Way
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.products.screens import telling, worst
from labkernels.numerics.verdict.diagnosis.whole_kernel.search import LEFT
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet, part, queries_of
from labkernels.units import LOG2_E

_KEYS = 48  # keys with most weight, on which a way of K shows
_VALUES = 384  # and one of V, whose numbers cost less
_CHANNELS = 16
_ROWS = 4
_MOST = 2**14  # ways that are tried
_NEAR = 96  # ways for each tensor that are tried on all keys of the rows
_JUDGED = 6
_SHARE = 0.3  # of mean z^2: a way that leaves more in the selecting rows is not judged
_DOUBTFUL = 0.3  # largest part of the errors that ties may be
_TIES = (0.0, -1.0, 1.0)
_TIES_OF_CUTS = (*_TIES, 2.0, -2.0, None)


def _tensor(sheet: Sheet, which: str) -> Some:
    def found() -> Any:
        return Some(sheet.keys(which), sheet.largest(which))

    return sheet.once((which, "in few bits", sheet.kv_head), found)


class _Screen:
    """Some rows of a sheet, their heaviest keys and some of their channels."""

    def __init__(self, rows: Sheet):
        """rows: a sheet of a few rows."""
        self.rows = rows
        off = rows.v - rows.truth.mean(0)
        self.p = rows.weights
        heavy = (self.p / self.p.sum(1, keepdims=True)).max(0) * np.abs(off).max(1)
        order = np.argsort(-heavy)
        self.some, self.of_v = np.sort(order[:_KEYS]), np.sort(order[:_VALUES])
        self.within = np.searchsorted(self.of_v, self.some)
        width = rows.v.shape[1]
        self.lanes = np.unique(np.linspace(0, width - 1, min(width, _CHANNELS)).astype(int))
        sink = np.exp2(rows.sink - rows.scores.max(1, keepdims=True))
        self.l = self.p.sum(1, keepdims=True) + sink
        self.sums = self.p @ rows.v[:, self.lanes]
        self.sigma = rows.sigma[:, self.lanes]
        self.off = (rows.out - rows.truth)[:, self.lanes] / self.sigma
        k, v = (_tensor(rows, which) for which in "kv")
        self.k = Some(k.whole, k.overall, self.some)
        self.v = Some(v.whole, v.overall, self.of_v, self.lanes)
        self.products = rows.q @ self.k.x.T

    def left(self, way: Way) -> dict[str, float]:
        """Return the mean z^2 of the channels that a way leaves, if K, V or both are kept in it."""
        p = self.p[:, self.some]
        if way.exact or way.read_law or way.unsigned:  # weights may move to any key
            return self._left_exactly(way)
        more = _weights(self.rows, self.rows.q @ way.kept(self.k).T, self.products, self.some) * p
        v = way.kept(self.v)
        below = self.l + more.sum(1, keepdims=True)
        of_v = self.sums + self.p[:, self.of_v] @ (v - self.v.x)
        given = {
            "V": of_v / self.l,
            "K": (self.sums + more @ self.v.x[self.within]) / below,
            "K and V": (of_v + more @ v[self.within]) / below,
        }
        right = self.sums / self.l
        return {
            what: float(((self.off - (x - right) / self.sigma) ** 2).mean())
            for what, x in given.items()
        }

    def _left_exactly(self, way: Way) -> dict[str, float]:
        """Return the same for K and V apart, from all keys of the first row."""
        row = part(self.rows, slice(1))
        z = (row.out - _outputs(row, "K", way, 0.0)) / row.sigma
        change = self.p[:, self.of_v] @ (way.kept(self.v) - self.v.x) / self.l
        of_v = float(((self.off - change / self.sigma) ** 2).mean())
        return {"V": of_v, "K": float((z**2).mean())}


def _weights(row: Sheet, products: Array, own: Array, some: Array) -> np.ndarray:
    """Return 2^(s' - s) - 1 of some keys. Shapes: [R, k]."""
    variant = row.problem.variant
    if variant is None:
        moved = products - own
    else:
        moved = np.subtract(
            *(variant.shaped(x, row.heads, row.places, some) for x in (products, own))
        )
    return np.expm1(np.clip(moved, -1e3, 1e3) / LOG2_E)


def of_keys(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """K, V or both are kept in few bits, with scales of blocks."""
    if not isinstance(sheets[0].channels, slice):
        return
    rows = part(sheets[0], telling(sheets[0])[:_ROWS])
    screen = _Screen(rows)
    found: dict[str, list[tuple[float, int, Way]]] = {"V": [], "K": [], "K and V": []}
    shape = len(rows.k), min(rows.k.shape[1], rows.v.shape[1])
    for i, way in zip(range(_MOST), ways.every(shape), strict=False):
        for what, left in screen.left(way).items():
            if np.isfinite(left):
                found[what].append((left, i, way))
    before = float((((rows.out - rows.truth) / rows.sigma) ** 2).mean())
    for what, tried in found.items():
        near = [way for *_, way in sorted(tried, key=lambda one: one[:2])[:_NEAR]]
        yield from _judged(rows, what, near, before, misfit)


def _judged(
    rows: Sheet, what: str, near: list[Way], before: float, misfit: Misfit
) -> Iterator[Mistake]:
    """Yield the ways that leave least on all keys of some rows, where they leave little."""
    by_all = []
    for i, way in enumerate(near):
        z = (rows.out - _outputs(rows, what, way, 0.0)) / rows.sigma
        by_all.append((float((z**2).mean()), i, way))
    for left, _, way in sorted(by_all, key=lambda one: one[:2])[:_JUDGED]:
        if left <= max(_SHARE * before, 4.0):
            outputs = _rounding(_outputs, what, way, misfit)
            cost = 2.0 + (not way.precision) + 0.5 * (what == "K and V")
            name = way.name.format(what)
            yield Mistake(name, way.where, outputs, way.precision, cost=cost)
            if what == "V" and misfit(outputs) > LEFT**2:
                noise = lambda sheet, w=way: _of_ties(sheet, w)  # noqa: E731
                yield Mistake(
                    name, f"{way.where}; ties go either way", outputs, noise=noise, cost=cost
                )


def _rounding(
    outputs: Callable[..., Any], what: str, way: Way, misfit: Misfit
) -> Callable[..., Any]:
    """Return the outputs with ties rounded in the direction that fits best."""
    some = _TIES_OF_CUTS if way.to else _TIES
    each = [lambda sheet, t=ties: outputs(sheet, what, way, t) for ties in some]
    return min(each, key=misfit)


def _of_ties(sheet: Sheet, way: Way) -> Array:
    """Return the variance of rows whose V has numbers between two steps; 0 if it is most errors'.

    Shapes: [R, Dv].
    """
    p = sheet.weights / sheet.weights.sum(1, keepdims=True)
    found = p**2 @ way.doubt(_tensor(sheet, "v"))
    squares = ((sheet.out - sheet.truth) ** 2).mean()
    return found * (found.mean() <= _DOUBTFUL * squares)


def _kept(sheet: Sheet, which: str, way: Way, ties: float | None = 0.0) -> np.ndarray:
    return way.kept(_tensor(sheet, which), ties)


def _outputs(sheet: Sheet, what: str, way: Way, ties: float | None) -> Array:
    k = _kept(sheet, "k", way, ties) if "K" in what else sheet.k
    scores = sheet.masked(sheet.shaped(sheet.q @ k.T)) if "K" in what else sheet.scores
    return sheet.attend(scores, _kept(sheet, "v", way, ties) if "V" in what else sheet.v)


def _queries(sheet: Sheet, head: int) -> np.ndarray:
    """Return the queries of a head of a request, exactly as they are, to keep their ties."""

    def found() -> Any:
        tokens = np.arange(*(int(sheet.problem.q_ends[sheet.request + i]) for i in (0, 1)))
        unit = sheet.problem.scale * LOG2_E
        every = queries_of(sheet.problem, tokens, np.full(len(tokens), head)) / unit
        return every.astype(np.float32).astype(np.float64)

    return sheet.once(("queries as they are", head), found)


def _some_queries(sheet: Sheet, head: int, rows: Array) -> Some:
    at = "queries in few bits", head, rows.tobytes()
    if at not in sheet.notes:
        x = _queries(sheet, head)
        sheet.notes[at] = Some(x, float(np.abs(x).max()), rows)
    return sheet.notes[at]


def of_queries(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Q is kept in few bits, with a scale for each block of its tokens and channels."""
    few = worst(sheets)
    row = few[0]
    some = np.argsort(-row.weights[0] * np.abs(row.v - row.truth).max(1))[:_KEYS]
    own, v = row.q @ row.k[some].T, row.v[some]
    l = float(row.weights.sum() + np.exp2(row.sink - row.scores.max())[0, 0])
    found = []
    shape = _queries(row, int(row.heads[0])).shape
    every = ways.every((max(shape[0], 2), shape[1]))
    for i, way in zip(range(_MOST), every, strict=False):
        products = _kept_queries(row, way, 0.0) @ row.k[some].T
        more = row.weights[0, some] * _weights(row, products, own, some)[0]
        given = (row.truth[0] * l + more @ v) / (l + more.sum())
        left = float((((row.out[0] - given) / row.sigma[0]) ** 2).mean())
        if np.isfinite(left):
            found.append((left, i, way))
    near = [way for *_, way in sorted(found, key=lambda one: one[:2])[:_NEAR]]
    left_of = [misfit(lambda s, w=way: _with_queries(s, "Q", w, 0.0), few) for way in near]
    for i in np.argsort(left_of, kind="stable")[:_JUDGED].tolist():
        way, cost = near[i], 2.0 + (not near[i].precision)
        outputs = _rounding(_with_queries, "Q", way, misfit)
        yield Mistake(way.name.format("Q"), way.where, outputs, way.precision, cost=cost)


def _kept_queries(sheet: Sheet, way: Way, ties: float | None) -> np.ndarray:
    q = np.empty_like(sheet.q)
    for head in np.unique(sheet.heads).tolist():
        rows = sheet.heads == head
        q[rows] = way.kept(_some_queries(sheet, head, sheet.queries[rows]), ties)
    return q * (sheet.problem.scale * LOG2_E)


def _with_queries(sheet: Sheet, what: str, way: Way, ties: float | None) -> Array:
    q = _kept_queries(sheet, way, ties)
    return sheet.attend(sheet.masked(sheet.shaped(q @ sheet.k.T)))


ALL = (of_keys, of_queries)
