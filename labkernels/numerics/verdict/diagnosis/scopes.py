"""Which keys an edit concerns: one linear equation for all of them.

A row is right where above - out below = 0, which is linear in the share with which each group of
keys follows an edit. So the shares are one least-squares solution, and no set of keys is tried.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.program import TINY, Block, Terms

_DIRECTIONS = 16  # of the output's channels, random ones: more say no more about 24 groups
_GROUPS = 24
_RESIDUES = (2, 3, 4, 8, 16, 32)
_LONG = 1024  # keys: in longer requests only runs of keys are solved for
_FREE = 0.3  # share of the error that free shares may leave: else no set of keys will do
_ENDS = 12  # ends of runs that are moved key by key
_LEAST = 1e-9  # part of the denominator below which a row has no weight left


@dataclass(frozen=True, eq=False)
class Scope:
    """Keys that follow an edit, and the factor of it. Shapes: keys [L] of the longest request."""

    keys: np.ndarray
    factor: float
    cost: float


class Screen:
    """A few rows, and what each key adds to them in a few directions. Shapes: side [rows, 16]."""

    def __init__(self, blocks: list[Block]) -> None:
        self.blocks = blocks
        self.n = max(block.n for block in blocks)
        width = blocks[0].truth.shape[1]
        drawn = np.random.default_rng(1).standard_normal((width, min(width, _DIRECTIONS)))
        self.turn = np.linalg.qr(drawn)[0]
        self.size = sum(block.truth.size for block in blocks)
        self.parts, sides = [], []
        for block in blocks:
            ways = self.turn / (block.sigma * block.sums)[:, :, None]
            own = block.v @ ways
            out = (block.out[:, None] @ ways)[:, 0]
            self.parts.append((block, ways, own, block.w[:, :, None] * own, out))
            sides.append((((block.out - block.truth) * block.sums)[:, None] @ ways)[:, 0])
        self.side = np.concatenate(sides)

    @functools.cached_property
    def groupings(self) -> list[tuple[np.ndarray, int, np.ndarray]]:
        """The group of each key, keys per group or 0, and groups by keys as 0 or 1: runs first."""
        keys = np.arange(self.n)
        tile = 4
        while tile * _GROUPS < self.n:
            tile *= 2
        found = [
            (keys // tile, tile),
            *((keys % p, 0) for p in _RESIDUES if 2 * p <= self.n <= _LONG),
        ]
        return [
            (labels, tile, (labels == np.arange(labels.max() + 1)[:, None]).astype(float))
            for labels, tile in found
        ]

    def scopes(
        self, terms: list[Terms], factors: tuple[float, ...], most: float
    ) -> Iterator[Scope]:
        """Yield sets of keys, other than all, for which an edit explains the rows.

        factors: shares that a key may have; none: one number, which is fitted, too.
        """
        each, below = self._changes(terms)
        if not np.isfinite(each).all():
            return
        empty = not any(
            t.above.any() or t.below.any() for t in terms
        )  # then all at once say nothing
        for labels, tile, hot in self.groupings:
            a = (hot @ each).swapaxes(0, 1)
            share = _solved(a.reshape(len(a), -1), self.side.ravel(), empty=empty, most=most)
            if share is None:
                continue
            size = np.abs(share) * np.sqrt((a**2).sum((1, 2)))
            fitted = float(np.median(share[size >= 0.3 * size.max()]))
            for factor in factors or (fitted,):
                if not abs(factor) > 1e-3:
                    continue
                keys = (share / factor > 0.5)[labels]
                keys = self._moved(each, below, keys, factor, tile) if tile else keys
                if keys.any() and not keys.all() and self._left(each, below, keys, factor) <= most:
                    runs = int((np.diff(keys.astype(int)) == 1).sum()) + int(keys[0])
                    cost = 0.4 + 0.2 * runs if tile else 1.0 + 0.1 * int((share > 0.5).sum())
                    yield Scope(keys, factor, cost + 0.5 * (not factors))

    def _changes(self, terms: list[Terms]) -> tuple[np.ndarray, np.ndarray]:
        """Return what each key changes: [rows, L, 16], and in the denominator: [rows, L]."""
        found = np.zeros((len(self.side), self.n, self.turn.shape[1]))
        below, at = np.zeros(found.shape[:2]), 0
        for (block, ways, own, weighed, out), t in zip(self.parts, terms, strict=True):
            rows = slice(at, at + len(block.tokens))
            other = own if t.v is block.v else t.v @ ways
            less = t.below - block.w
            more = t.above[:, :, None] * other - weighed
            found[rows, : block.n] = more - less[:, :, None] * out[:, None]
            below[rows, : block.n] = less / block.sums
            at = rows.stop
        return found, below

    def _left(self, each: Array, below: Array, keys: Array, factor: float) -> float:
        """Return mean z^2 of the rows if some keys follow the edit."""
        left = self.side - factor * each[:, keys].sum(1)
        l = 1 + factor * below[:, keys].sum(1)
        return float(_over(left, l).mean())

    def _moved(
        self, each: Array, below: Array, keys: Array, factor: float, tile: int
    ) -> np.ndarray:
        """Return the keys with each end of each run where it fits best, by running sums."""
        sums = [np.concatenate([0 * x[:, :1], x.cumsum(1)], 1) for x in (each, below)]
        keys = keys.copy()
        for _ in range(2):
            flips = np.flatnonzero(np.diff(keys.astype(int))) + 1
            for end in [*([0] if keys[0] else []), *flips, *([self.n] if keys[-1] else [])][:_ENDS]:
                sign = 1.0 if end > 0 and keys[end - 1] else -1.0  # a run ends here, or begins
                tried = np.arange(max(0, end - tile), min(self.n, end + tile) + 1)
                left = self.side - factor * each[:, keys].sum(1)
                l = 1 + factor * below[:, keys].sum(1)
                moved = left[:, None] - sign * factor * (sums[0][:, tried] - sums[0][:, [end]])
                grown = l[:, None] + sign * factor * (sums[1][:, tried] - sums[1][:, [end]])
                to = int(tried[_over(moved, grown).mean(0).argmin()])
                keys[min(end, to) : max(end, to)] = (sign > 0) == (to > end)
        return keys


def _over(left: Array, l: Array) -> np.ndarray:
    """Return mean z^2 of rows, far too large where no weight is left. Shapes: as l."""
    found: np.ndarray = (left**2).mean(-1) / np.where(l > _LEAST, l, 1.0) ** 2
    return np.where(l > _LEAST, found, 1e30)


def _solved(a: Array, y: Array, *, empty: bool, most: float) -> np.ndarray | None:
    """Return the shares of groups, or None where not even free shares explain the rows.

    empty: the edit leaves nothing, so that the kept keys are the null vector of the equations.
    Shapes: a [groups, equations], y [equations].
    """
    size = np.sqrt((a**2).sum(1))
    live = size > 3e-4 * size.max(initial=TINY)
    if not live.any() or live.sum() > 0.6 * y.size:
        return None
    share, b = np.zeros(len(a)), a[live] / size[live][:, None]
    gram = b @ b.T
    if empty:
        u = np.linalg.eigh(gram)[1][:, 0]
        big, kept = np.abs(u) > 0.2 * np.abs(u).max(), u / size[live]
        share[live] = 1 - kept / np.median(kept[big])
        return share
    free = np.linalg.solve(gram + 1e-10 * np.eye(len(gram)), b @ y)
    if not ((y - free @ b) ** 2).mean() <= max(most, _FREE * float((y**2).mean())):
        return None
    share[live] = free / size[live]
    return share
