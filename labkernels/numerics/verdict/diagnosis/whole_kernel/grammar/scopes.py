"""Which keys a wrong reading concerns: all keys, a run, every n-th key, tiles.

A row is explained where (sum of above) - out (sum of below) = 0, and a run of keys adds the
difference of two running sums. The squares of all runs therefore follow from the products of all
running sums.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis import words
from labkernels.numerics.verdict.diagnosis.whole_kernel.grammar.terms import (
    Terms,
    joined,
    right,
    sink_of,
)
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet

_ENDS = 128  # ends of runs: with more keys, ends are multiples of a step, and refined later
_PERIODS = (2, 3, 4, 8, 16, 32)
_TILES = (4, 8, 16, 32, 64, 128, 256)
_NEAREST = 3  # coarse runs that are refined
_TILE_ENDS = 8  # the ends of a run of whole tiles are multiples of this
_DIRECTIONS = 16  # directions of the channels along which a row is compared with a reading first


@dataclass(frozen=True, eq=False)
class Scope:
    """A set of keys, the words for it, and its cost. of: returns which of n keys are in it [n]."""

    words: str
    of: Callable[..., Any]
    cost: float


@dataclass(frozen=True)
class Nearest:
    """A scope, the mean z^2 that a reading leaves there, and its factor."""

    scope: Scope
    miss: float
    factor: float = 1.0


ALL_KEYS = Scope("", lambda n: np.ones(n, bool), 0.0)


def run(first: int, last: int, n: int) -> Scope:
    """Return the scope of keys `first` to `last` - 1 of n."""

    def of(m: int) -> Array:
        key = np.arange(m)
        return (key >= first) & ((key < last) | (last >= n))

    if first <= 0 and last >= n:
        return ALL_KEYS
    if last >= n:
        return Scope(f"keys from {first} on", of, 1.0)
    said = f"keys {first} to {last - 1}" if last - first > 1 else f"key {first}"
    size = last - first
    tidy = first == 0 or (first % _TILE_ENDS == 0 and last % _TILE_ENDS == 0) or size == 1
    return Scope(said, of, 1.0 if first == 0 else 1.5 if tidy else 2.0)


@functools.cache
def regular(n: int) -> tuple[tuple[Scope, ...], np.ndarray]:
    """Return scopes with a period, and which keys they have. Shapes: [S, n]."""
    found = []
    for period in _PERIODS:
        if 2 * period > n:
            continue
        for residue in range(period):
            found.append(
                Scope(
                    f"every key j with j % {period} = {residue}",
                    lambda m, p=period, r=residue: np.arange(m) % p == r,
                    1.5,
                )
            )
    for size in _TILES:
        if 2 * size > n:
            continue
        for part in (0, 1):
            half = ("first", "second")[part]
            found.append(
                Scope(
                    f"the {half} half of each tile of {size} keys",
                    lambda m, s=size, p=part: np.arange(m) % s // (s // 2) == p,
                    1.5,
                )
            )
            even = ("even", "odd")[part]
            found.append(
                Scope(
                    f"{even} tiles of {size} keys",
                    lambda m, s=size, p=part: np.arange(m) // s % 2 == p,
                    1.5,
                )
            )
        found.append(
            Scope(
                f"the first key of each tile of {size}",
                lambda m, s=size: np.arange(m) % s == 0,
                1.5,
            )
        )
    return tuple(found), np.stack([s.of(n) for s in found]).astype(float) if found else np.zeros(
        (0, n)
    )


class Screen:
    """A few rows, and the mean z^2 that other readings of their keys leave."""

    def __init__(self, rows: list[Sheet]):
        """rows: sheets of one row each; their numbers of keys may differ."""
        self.rows = rows
        self.keys = max(sheet.kv_len for sheet in rows)
        self.equations = sum(sheet.out.size for sheet in rows)
        channels = rows[0].out.shape[1]
        ways = np.random.default_rng(1).standard_normal((channels, min(channels, _DIRECTIONS)))
        self.ways = np.linalg.qr(ways)[0]  # [Dv, 16], orthonormal

    def changes(self, sheet: Sheet, other: Terms) -> tuple[Array, Array, Array, float]:
        """Return, by key, the change of equations [L, Dv] and denominator [L]; right side; l."""
        own = right(sheet)
        below = (other.below - own.below)[0]
        above = other.above[0][:, None] * other.v - own.above[0][:, None] * own.v
        l = float(own.below.sum() + sink_of(sheet)[0, 0])
        each = (above - sheet.out * below[:, None]) / sheet.sigma
        side = ((sheet.out - sheet.truth) * l / sheet.sigma)[0]
        return each, below, side, l

    def missed(self, of: Callable[..., Any], scope: Scope) -> float:
        """Return the mean z^2 that a reading of some keys leaves."""
        total = 0.0
        for sheet in self.rows:
            terms = of(sheet)
            if terms is None:
                return np.inf
            some = np.broadcast_to(scope.of(sheet.kv_len), sheet.weights.shape)
            z = (sheet.out - joined(sheet, terms, some)) / sheet.sigma
            total += float((z**2).sum())
        return total / self.equations if np.isfinite(total) else np.inf

    def nearest(
        self,
        of: Callable[..., Any],
        scalable: bool = False,
        *,
        everywhere: bool = False,
        limit: float = np.inf,
        coarse: bool = False,
    ) -> list[Nearest]:
        """Return the best scopes of each kind, or all keys alone; [] if the reading does not apply.

        limit: [] too if the first row alone leaves more in every scope, as most readings do.
        coarse: use some directions of the channels alone.
        """
        parts: list[Any] = []
        for sheet in self.rows:
            terms = of(sheet)
            if terms is None:
                return []
            if not (parts or scalable) and self._least(sheet, terms, everywhere) > limit:
                return []
            part = self._along(sheet, terms) if coarse else self.changes(sheet, terms)
            if not all(np.isfinite(x).all() for x in part):
                return []
            parts.append(part)
        found = [self._all(parts, scalable)]
        if not everywhere:
            found += [*self._regular(parts, scalable), *self._runs(parts, scalable)]
        return sorted(found, key=lambda near: near.scope.cost)

    def _least(self, sheet: Sheet, other: Terms, everywhere: bool) -> float:
        """Return the least that a row adds to the mean z^2 along some directions, in any scope."""
        if everywhere:
            own, ways = right(sheet), self.ways / sheet.sigma[0][:, None]
            below = other.below[0].sum() - own.below[0].sum()
            l = float(own.below.sum() + sink_of(sheet)[0, 0])
            change = other.above[0] @ other.v - own.above[0] @ own.v - sheet.out[0] * below
            side = (sheet.out - sheet.truth)[0] @ ways * l
            return self._all([((change @ ways)[None], below[None], side, l)], False).miss
        part = [self._along(sheet, other)]
        found = [self._all(part, False), *self._regular(part, False), *self._runs(part, False)]
        return min(near.miss for near in found)

    def _along(self, sheet: Sheet, other: Terms) -> tuple[Array, Array, Array, float]:
        """Return the changes along some directions of the channels."""
        own, ways = right(sheet), self.ways / sheet.sigma[0][:, None]
        if "along" not in sheet.notes:
            values = own.v @ ways
            sheet.notes["along"] = values, own.above[0][:, None] * values, sheet.out @ ways
        values, sums, out = sheet.notes["along"]
        values = values if other.v is own.v else other.v @ ways
        below = (other.below - own.below)[0]
        l = float(own.below.sum() + sink_of(sheet)[0, 0])
        each = other.above[0][:, None] * values - sums - below[:, None] * out
        return each, below, (sheet.out - sheet.truth)[0] @ ways * l, l

    def _all(self, parts: list[Any], scalable: bool) -> Nearest:
        sums = [(e.sum(0), b.sum(), side, l) for e, b, side, l in parts]
        miss, factor = self._missed(
            [(e[None], np.array([b]), side, l) for e, b, side, l in sums], scalable
        )
        return Nearest(ALL_KEYS, float(miss[0]), float(factor[0]))

    def _missed(self, sums: list[Any], scalable: bool) -> tuple[Array, Array]:
        """Return mean z^2 for sums [S, Dv], [S] over scopes, and factors. Shapes: [S], [S]."""
        n = len(sums[0][0])
        factor = np.ones(n)
        if scalable:
            along = sum((e @ side) / l**2 for e, _, side, l in sums)
            square = sum((e**2).sum(1) / l**2 for e, _, _, l in sums)
            factor = along / np.maximum(square, 1e-300)
            # the denominator changes with the factor, so that the equations are weighted again
            for _ in range(2):
                dens = [np.maximum(np.abs(l + factor * b), 1e-12 * l) for _, b, _, l in sums]
                along = sum(
                    (e @ side) / d**2 for (e, _, side, _), d in zip(sums, dens, strict=True)
                )
                square = sum(
                    (e**2).sum(1) / d**2 for (e, _, _, _), d in zip(sums, dens, strict=True)
                )
                factor = along / np.maximum(square, 1e-300)
        total = np.zeros(n)
        for e, b, side, l in sums:
            den = l + factor * b
            left = ((side - factor[:, None] * e) ** 2).sum(1)
            with np.errstate(divide="ignore", invalid="ignore"):
                total += np.where(den > 1e-9 * l, left / den**2, np.inf)
        return total / self.equations, factor

    def _regular(self, parts: list[Any], scalable: bool) -> list[Nearest]:
        scopes, flags = regular(self.keys)
        if not scopes:
            return []
        sums = [
            (flags[:, : len(b)] @ e, flags[:, : len(b)] @ b, side, l) for e, b, side, l in parts
        ]
        miss, factor = self._missed(sums, scalable)
        some = np.argsort(np.where(np.isfinite(miss), miss, np.inf))[:2]
        return [Nearest(scopes[i], float(miss[i]), float(factor[i])) for i in some]

    def _runs(self, parts: list[Any], scalable: bool) -> list[Nearest]:
        """Return the best run from the first key, to the last key, and between any two ends."""
        n = self.keys
        step = 1
        while n / step > _ENDS:
            step *= 2
        ends = np.unique(np.append(np.arange(0, n, step), n))
        runs = [
            (e, b, side, l)
            for e, b, side, l in (
                (_running(e, n), _running(b[:, None], n)[:, 0], side, l) for e, b, side, l in parts
            )
        ]
        miss = self._of_pairs(runs, ends, scalable)
        a, b = np.triu_indices(len(ends), 1)
        flat = miss[a, b]
        found = []
        groups = (a == 0) & (ends[b] < n), (b == len(ends) - 1) & (a > 0), (a > 0) & (ends[b] < n)
        for group in groups:
            places = np.flatnonzero(group)
            if not len(places):
                continue
            best = places[np.argsort(flat[places])[:_NEAREST]]
            pairs = {(int(ends[a[i]]), int(ends[b[i]])) for i in best}
            if step > 1:
                pairs = {
                    (i, j)
                    for x, y in pairs
                    for i in ([0] if x == 0 else range(max(x - step + 1, 0), min(x + step, n)))
                    for j in ([n] if y == n else range(max(y - step + 1, 1), min(y + step, n + 1)))
                    if i < j
                }
            listed = sorted(pairs)
            first, last = np.array(listed).T
            sums = [(e[last] - e[first], d[last] - d[first], side, l) for e, d, side, l in runs]
            left, factor = self._missed(sums, scalable)
            i = int(np.argmin(np.where(np.isfinite(left), left, np.inf)))
            found.append(Nearest(run(*listed[i], n), float(left[i]), float(factor[i])))
        return found

    def _of_pairs(self, runs: list[Any], ends: Array, scalable: bool) -> Array:
        """Return mean z^2 for runs between all pairs of ends. Shapes: [E, E], of first and last."""
        total = np.zeros((len(ends), len(ends)))
        products = []
        for e, d, side, l in runs:
            some = e[ends]
            gram = some @ some.T
            size = np.diag(gram)
            square = size[:, None] + size - 2 * gram
            along = some @ side
            along = along - along[:, None]
            products.append((square, along, d[ends] - d[ends][:, None], float(side @ side), l))
        factor: Array | float = 1.0
        if scalable:
            up, down = total.copy(), total.copy()
            for square, along, _, _, l in products:
                up += along / l**2
                down += square / l**2
            factor = up / np.maximum(down, 1e-300)
        for square, along, below, own, l in products:
            den = l + factor * below
            left = np.maximum(own - 2 * factor * along + factor**2 * square, 0.0)
            with np.errstate(divide="ignore", invalid="ignore"):
                total += np.where(den > 1e-9 * l, left / den**2, np.inf)
        return np.where(np.isfinite(total), total, np.inf) / self.equations


def _running(x: Array, n: int) -> Array:
    """Return sums of the first 0, 1, ..., n rows; x may have fewer rows. Shapes: [n + 1, X]."""
    found = np.concatenate([np.zeros((1, x.shape[1])), np.cumsum(x, 0)])
    return np.concatenate([found, np.broadcast_to(found[-1], (n + 1 - len(found), x.shape[1]))])


def of_blocks(screen: Screen, of: Callable[..., Any], size: int, limit: float) -> Scope | None:
    """Return the set of blocks of keys that a fit finds; None if it does not explain the rows."""
    n = -(-screen.keys // size)
    if 2 * n > screen.equations or n < 3:
        return None
    square, along = np.zeros((n, n)), np.zeros(n)
    parts = []
    for sheet in screen.rows:
        terms = of(sheet)
        if terms is None:
            return None
        e, b, side, l = screen.changes(sheet, terms)
        if not np.isfinite(e).all():
            return None
        starts = np.arange(0, len(e), size)
        sums = np.add.reduceat(e, starts)
        sums = np.concatenate([sums, np.zeros((n - len(sums), e.shape[1]))])
        square += sums @ sums.T / l**2
        along += sums @ side / l**2
        below = np.add.reduceat(b, starts)
        parts.append((sums, np.concatenate([below, np.zeros(n - len(below))]), side, l))
    scale = np.sqrt(np.maximum(np.diag(square), 1e-300))
    x = np.linalg.lstsq(square / np.outer(scale, scale), along / scale, rcond=1e-10)[0] / scale
    chosen = x > 0.5
    if not chosen.any() or chosen.all():
        return None
    whole = [
        (s[chosen].sum(0)[None], np.array([b[chosen].sum()]), side, l) for s, b, side, l in parts
    ]
    if not screen._missed(whole, False)[0][0] <= limit:
        return None
    keys = (np.flatnonzero(chosen)[:, None] * size + np.arange(size)).ravel()
    told = words.of("key", screen.keys)(keys[keys < screen.keys])

    def within(m: int) -> Array:
        block = np.arange(m) // size
        return np.where(block < n, chosen[np.minimum(block, n - 1)], False)

    return Scope(told, within, 3.0)
