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
from labkernels.numerics.verdict.diagnosis.whole_kernel.grammar.sums import Part, Ways
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

    def _part(self, sheet: Sheet, terms: Terms) -> Part:
        each, below, side, l = self.changes(sheet, terms)
        return Part.of(each.T, below, side, l, self.keys)

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
        coarse: use some directions of the channels alone, and ends of runs some keys apart.
        """
        parts: list[Any] = []
        for sheet in self.rows:
            terms = of(sheet)
            if terms is None:
                return []
            if not (parts or scalable) and self._least(sheet, terms, everywhere) > limit:
                return []
            part = self._along(sheet, terms) if coarse else self._part(sheet, terms)
            if not np.isfinite(part.sums[:, -1]).all():
                return []
            parts.append(part)
        found = [self._all(parts, scalable)]
        if not everywhere:
            found += self._regular(parts, scalable) + self._runs(parts, scalable, coarse=coarse)
        return sorted(found, key=lambda near: near.scope.cost)

    def _least(self, sheet: Sheet, other: Terms, everywhere: bool) -> float:
        """Return the least that a row adds to the mean z^2 along some directions, in any scope."""
        if everywhere:
            return float(self.missed_along(sheet, other.below, *self._sums_along(sheet, other))[0])
        part = [self._along(sheet, other)]
        found = [self._all(part, False), *self._regular(part, False), *self._runs(part, False)]
        return min(near.miss for near in found)

    def _ways(self, sheet: Sheet) -> Ways:
        """Return the right terms of a row along some directions, computed once."""
        if "along" not in sheet.notes:
            sheet.notes["along"] = Ways.of(sheet, self.ways / sheet.sigma[0][:, None])
        return sheet.notes["along"]

    def _sums_along(self, sheet: Sheet, other: Terms) -> tuple[Array]:
        own = self._ways(sheet)
        if other.v is sheet.v:
            return (other.above @ own.values.T,)
        return (other.above @ other.v @ own.ways,)

    def missed_along(self, sheet: Sheet, below: Array, sums: Array) -> Array:
        """Return mean z^2 along some directions, by weights below [S, L] and sums [S, 16]."""
        own = self._ways(sheet)
        change = below.sum(1) - own.below
        e = sums - own.sums - change[:, None] * own.out
        return self._missed([(e, change, own.side, own.l)], False)[0]

    def _along(self, sheet: Sheet, other: Terms) -> Part:
        """Return the changes along some directions of the channels."""
        own = self._ways(sheet)
        values = own.values if other.v is sheet.v else own.ways.T @ other.v.T
        below = (other.below - sheet.weights)[0]
        each = other.above[0] * values
        each -= own.weighted
        each -= below * own.out[:, None]
        return Part.of(each, below, own.side, own.l, self.keys)

    def _all(self, parts: list[Part], scalable: bool) -> Nearest:
        miss, factor = self._missed([part.of_runs(0, -1) for part in parts], scalable)
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

    def _regular(self, parts: list[Part], scalable: bool) -> list[Nearest]:
        scopes, flags = regular(self.keys)
        if not scopes:
            return []
        miss, factor = self._missed([part.of_flags(flags) for part in parts], scalable)
        some = np.argsort(np.where(np.isfinite(miss), miss, np.inf))[:2]
        return [Nearest(scopes[i], float(miss[i]), float(factor[i])) for i in some]

    def _runs(self, parts: list[Part], scalable: bool, *, coarse: bool = False) -> list[Nearest]:
        """Return the best run from the first key, to the last key, and between any two ends."""
        n, step = self.keys, 1
        while n / step > _ENDS:
            step *= 2
        ends = np.append(np.arange(0, n, step), n)
        count = len(ends)
        miss = self._of_pairs(parts, ends[None], ends[None], scalable)[0]
        chosen = []
        for rows, columns in _kinds(count):
            flat = miss[rows, columns].ravel()
            best = np.argpartition(flat, _NEAREST - 1)[:_NEAREST] if len(flat) > _NEAREST else ...
            first, last = (
                np.broadcast_to(x, miss[rows, columns].shape).ravel()[best]
                for x in (ends[rows, None], ends[columns])
            )
            chosen.append((first[first < last], last[first < last]))
        if step > 1 and not coarse:
            chosen = self._refined(parts, chosen, step, scalable)
        found = []
        for first, last in chosen:
            if not len(first):
                continue
            left, factor = self._missed([part.of_runs(first, last) for part in parts], scalable)
            i = int(np.argmin(np.where(np.isfinite(left), left, np.inf)))
            scope = run(int(first[i]), int(last[i]), n)
            found.append(Nearest(scope, float(left[i]), float(factor[i])))
        return found

    def _refined(
        self, parts: list[Part], chosen: list[tuple[Array, Array]], step: int, scalable: bool
    ) -> list[tuple[Array, Array]]:
        """Return the best runs whose ends lie less than a step from those of coarse runs."""
        n, off = self.keys, np.arange(1 - step, step)
        first, last = (np.concatenate(x)[:, None] for x in zip(*chosen, strict=True))
        starts = np.where(first == 0, 0, np.clip(first + off, 0, n))
        stops = np.where(last == n, n, np.clip(last + off, 1, n))
        if not len(starts):
            return []
        miss = self._of_pairs(parts, starts, stops, scalable).reshape(len(starts), -1)
        best = np.argpartition(miss, _NEAREST, axis=1)[:, : _NEAREST + 1]
        runs = [np.take_along_axis(starts, best // len(off), 1)]
        runs.append(np.take_along_axis(stops, best % len(off), 1))
        found, at = [], 0
        for pair in chosen:
            rows = slice(at, at := at + len(pair[0]))
            a, b = (x[rows].ravel() for x in runs)
            found.append((a[a < b], b[a < b]))
        return found

    def _of_pairs(self, parts: list[Part], first: Array, last: Array, scalable: bool) -> Array:
        """Return mean z^2 for runs between all pairs of ends, infinite for none.

        Shapes: first [X, E], last [X, F] -> [X, E, F].
        """
        products = []
        for part in parts:
            a, b = (part.sums[:, x].transpose(1, 2, 0) for x in (first, last))
            a, b, below = a[..., :-1], b[..., :-1], b[:, None, :, -1] - a[:, :, None, -1]
            square = (
                (a**2).sum(-1)[:, :, None] + (b**2).sum(-1)[:, None] - 2 * (a @ b.swapaxes(1, 2))
            )
            along = (b @ part.side)[:, None] - (a @ part.side)[:, :, None]
            products.append((square, along, below, float(part.side @ part.side), part.l))
        factor: Array | float = 1.0
        if scalable:
            up = sum(along / l**2 for _, along, _, _, l in products)
            down = sum(square / l**2 for square, _, _, _, l in products)
            factor = up / np.maximum(down, 1e-300)
        total: Any = 0.0
        for square, along, below, own, l in products:
            den = l + factor * below
            left = np.maximum(own - 2 * factor * along + factor**2 * square, 0.0)
            with np.errstate(divide="ignore", invalid="ignore"):
                total = total + np.where(den > 1e-9 * l, left / den**2, np.inf)
        total = np.where(first[:, :, None] < last[:, None], total, np.inf)
        return np.where(np.isfinite(total), total, np.inf) / self.equations


def _kinds(count: int) -> tuple[tuple[slice, slice], ...]:
    """Return the pairs of ends: runs from the first key, runs to the last one, and runs between."""
    return (
        (slice(0, 1), slice(1, count - 1)),
        (slice(1, count - 1), slice(count - 1, count)),
        (slice(1, count - 1), slice(1, count - 1)),
    )


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
