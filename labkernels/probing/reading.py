"""Weights that were read, against those expected: which kind of difference lies between them.

A softmax hides a number per row in the logarithm of its weights, so differences of log weights are
compared within a row: what is left after the row's median is a factor by key, by tile, by score.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from labkernels.probing.case import Case
from labkernels.probing.report import span


class Kind(StrEnum):
    """How weights that were read differ from those expected; the first that fits is named."""

    OK = "ok"
    NOT_FINITE = "not finite"
    LEAK = "leak"  # of weight to hidden keys
    NEGATIVE = "negative"
    SMALL_LOST = "small lost"
    MISSING = "missing"  # keys; the others are right, up to a factor of their row
    ROW = "row"  # one factor for all keys of a row
    DISTANCE = "distance"  # a factor that grows along the keys
    CELLS = "cells"  # one factor within each tile, split or residue
    BY_KEY = "by key"  # factors that are the same in all rows
    SCALE = "scale"  # scores by a factor
    FUNCTION = "function"  # another function of the score
    OTHER = "other"


BELOW = 0.4  # share of the keys that are left which may be smaller than one that is lost
ROWS_EXPLAINED = 64  # enough to see a pattern, and cheap


def cells(n: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield partitions of n keys that kernels have: tiles, residues, alternating tiles, splits."""
    key = np.arange(n)
    for parts in (2, 3, 4, 5, 6, 8):
        yield f"{parts} equal splits", key // -(-n // parts)
    for size in (128, 96, 64, 48, 40, 32, 24, 20, 16, 12, 8):
        yield f"tiles of {size}", key // size
    for p in (2, 4, 8, 16, 32):
        yield f"keys mod {p}", key % p
    pairs = ((2, 4), (2, 8), (4, 8), (4, 16), (8, 16), (8, 32), (16, 32), (16, 64), (32, 64))
    for a, b in (*pairs, (32, 128), (64, 128), (64, 256)):
        yield f"runs of {a} in every {b}", key % b // a


def some_rows(rows: np.ndarray, most: int) -> np.ndarray:
    """Return a few of the rows that are True, spread evenly, as indices [n, 3]."""
    at = np.argwhere(rows)
    return at[np.linspace(0, len(at) - 1, min(most, len(at))).astype(int)]


def residual(x: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Return x less its median of each row, NaN where not valid."""
    x = np.where(valid, x, np.nan)
    return x - np.nanmedian(x, -1, keepdims=True)


@dataclass
class Reading:
    """Weights read in an experiment; kind and words say how they differ from those expected.

    value: a number that was read (a factor). some: the wrong rows that explain it. Shapes: got,
    scores (natural), off, log (as read less expected), got_log [B, H, M, N], rows [B, H, M],
    keys, keys_gone [N].
    """

    name: str
    case: Case
    got: np.ndarray
    scores: np.ndarray
    kind: str = Kind.OK
    words: str = ""
    value: float = 1.0

    def __post_init__(self) -> None:
        c = self.case
        self.want, _ = c.weights(self.scores)
        # A format of P may lose what is that much smaller than the row's largest weight.
        self.low = c.floor * np.maximum(self.want.max(-1, keepdims=True, initial=0), 1e-30)
        self.low = np.maximum(self.low, c.floor if c.u < 0.02 else self.low)
        self.off = ~(np.abs(self.got - self.want) <= c.tol * self.want + 3 * self.low)
        self.valid = self.want > 200 * self.low
        self.got_log = np.log(np.where(self.got > 0, self.got, np.nan))
        self.log = self.got_log - np.log(self.want)
        self.rows = self.off.any(-1)
        self.keys = self.off.any((0, 1, 2))
        self.keys_gone = np.zeros(c.s.keys, bool)
        if self.off.any():
            self.kind, self.words = self._explained()

    @property
    def most(self) -> float:
        """The largest difference of log weights, of weights that are well above the floor."""
        far = np.abs(np.where(self.valid & (self.got > 100 * self.low), self.log, np.nan))
        return float(np.nanmax(far, initial=0.0))

    def _explained(self) -> tuple[str, str]:
        self.some = some = tuple(some_rows(self.rows, ROWS_EXPLAINED).T)
        bad, valid, d = self.off[some], self.valid[some], self.log[some]
        got, want, low = self.got[some], self.want[some], self.low[some]
        if not np.isfinite(got).all():
            return Kind.NOT_FINITE, "weights that are not finite"
        leak = bad & (want == 0) & (np.abs(got) > 8 * low)
        if leak.any():
            share = np.median(got[leak]) / np.median(got[want > 0]) if (want > 0).any() else np.inf
            at = span("key", leak.any(0))
            return Kind.LEAK, f"weights at hidden {at}, {share:.3g} of a visible one"
        if (bad & (got < -3 * low)).any():
            return Kind.NEGATIVE, "negative weights"
        gone = valid & (got <= np.maximum(1e-3 * want, 3 * low))
        there = valid & (got > 100 * low) & ~gone
        r = residual(d, there)
        tol = 2.2 * self.case.tol
        flat = np.nanmax(np.abs(np.where(there, r, 0)), -1) <= tol
        self.keys_gone = gone.any(0)
        if flat.all() and gone.any():
            return self._without(gone, there, want)
        if flat.all():
            f = np.exp(np.nanmedian(np.where(there, d, np.nan), -1) if there.any() else [0.0])
            self.value = float(np.nanmedian(f))
            return Kind.ROW, f"all weights of a row by {np.nanmin(f):.4g} to {np.nanmax(f):.4g}"
        return self._shaped(d, r, there, tol)

    def _without(self, gone, there, want) -> tuple[str, str]:
        """Keys have no weight, and the others are right up to a factor: which, or the smallest?"""
        raw = np.where(gone | there, want, np.nan)
        most, top = np.nanmax(np.where(gone, raw, np.nan), -1), np.nanmax(raw, -1)
        # Weights are lost against the maximum so far: some that are smaller in the end stay.
        below = (there & (raw < most[:, None])).sum(-1) / np.maximum(there.sum(-1), 1)
        some = gone.any(-1)
        varied = np.nanmax(raw) - np.nanmin(raw) > 1e-6 and not (gone == gone[0]).all()
        small = (below[some] <= BELOW).all() and (most[some] < 0.25 * top[some]).all()
        if varied and small and some.sum() > 1:
            return Kind.SMALL_LOST, "the smallest weights of a row are lost"
        return Kind.MISSING, f"{span('key', self.keys_gone)} without a weight"

    def _shaped(self, d, r, there, tol) -> tuple[str, str]:
        """Say by what rule the factors change along a row."""
        n, rows = d.shape[-1], self.some
        s = np.where(there, self.scores[rows], np.nan)
        each, left = slope(np.broadcast_to(np.arange(n) * 1.0, d.shape), d, there)
        self.value = float(np.median(each))
        if left <= tol and n > 8 and abs(self.value) * n > 4 * tol:
            return Kind.DISTANCE, f"a bias that grows by {self.value:.4g} per key"
        spread = np.nanmax(np.abs(np.where(there, r, 0)))
        lost = f", {span('key', self.keys_gone)} lost" if self.keys_gone.any() else ""
        for name, cell in cells(n):
            if spread > 2 * tol and _within(d, there, cell) <= tol:
                return Kind.CELLS, f"factors that are the same within {name}{lost}"
        # Scores of a key that differ from row to row: a factor by key is then no function of them.
        varied = np.nanmax(np.nanstd(residual(s, there), 0)) > 0.2
        same = np.nanmedian(np.where(there, r, np.nan), 0)
        left = np.nanmax(np.abs(np.where(there, r - same, 0)))
        if len(d) > 3 and left <= 2 * tol and varied:
            odd, f = np.abs(same) > tol, np.exp(np.nanmax(np.abs(same)))
            return Kind.BY_KEY, f"{span('key', odd)} by a factor of {f:.3g} or so{lost}"
        logs = s + d
        all_rows, left = slope(s, logs, there, axis=None)
        self.value = all_rows.item()
        if left <= tol + 0.004 * abs(self.value - 1):
            return Kind.SCALE, f"scores by {self.value:.4g}"
        each, left = slope(s, logs, there)
        self.value = float(np.median(each))
        if left <= tol + 0.004 and n > 8:
            words = f"scores by {each.min():.4g} to {each.max():.4g}, a number for each row"
            return Kind.SCALE, words
        if word := _function(s, logs, there, tol):
            return Kind.FUNCTION, word
        return Kind.OTHER, f"log weights off by up to {spread:.3g}"


def _within(d: np.ndarray, there: np.ndarray, cell: np.ndarray) -> float:
    """Return half the largest spread of d inside a cell of a row."""
    order = np.argsort(cell, kind="stable")
    first = np.flatnonzero(np.diff(cell[order], prepend=-1))
    top = np.maximum.reduceat(np.where(there, d, -np.inf)[:, order], first, -1)
    low = np.minimum.reduceat(np.where(there, d, np.inf)[:, order], first, -1)
    return float(np.maximum(top - low, 0).max() / 2)


def slope(x, y, valid, axis: int | None = -1) -> tuple[np.ndarray, float]:
    """Return each row's slope of y over x, or one of all rows, and the largest residual."""
    x, y = (np.where(valid, t, np.nan) for t in (x, y))
    x, y = (t - np.nanmean(t, -1, keepdims=True) for t in (x, y))
    square = np.maximum(np.nansum(x * x, axis, keepdims=True), 1e-30)
    a = np.nansum(x * y, axis, keepdims=True) / square
    return a, float(np.nanmax(np.abs(y - a * x), initial=0.0))


def _function(s, logs, valid, tol) -> str:
    """Return words if log weights are one function of the score, up to a number per row."""
    for cap in (1, 2, 5, 8, 10, 15, 20, 30, 50):
        a, left = slope(cap * np.tanh(s / cap), logs, valid, axis=None)
        if left <= tol and a.item() > 0.99:
            return f"a soft cap of {cap}"
    top = np.nanmax(np.where(valid, logs, np.nan), -1, keepdims=True)
    x, y = (s - np.nanmax(s, -1, keepdims=True))[valid], (logs - top)[valid]
    i = np.argsort(x)
    x, y = x[i], y[i] - x[i]
    few = len(x) <= 200 or np.ptp(x) <= 0.5 or np.ptp(y) <= 2 * tol
    if few or np.mean(np.abs(np.diff(y)) > 4 * tol) >= 0.01:
        return ""
    j = int(np.argmax(np.abs(y - np.median(y[-20:]))))
    words = "another function of the score less the row's maximum: off by"
    return f"{words} {y[j]:.3g} at {x[j]:.3g}"
