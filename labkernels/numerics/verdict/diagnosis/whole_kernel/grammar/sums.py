"""Sums over keys of what a reading changes in a row, from which runs and regular sets follow."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.grammar.terms import sink_of
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet

_FOLD = 512  # keys after which all regular sets of keys repeat


@dataclass(frozen=True)
class Ways:
    """A right row along some directions of the channels.

    Shapes: ways [Dv, 16]; values, and those times their weights, [16, L]; sums, out, side [16].
    """

    ways: np.ndarray
    values: np.ndarray
    weighted: np.ndarray
    sums: np.ndarray
    out: np.ndarray
    side: np.ndarray
    below: float
    l: float

    @classmethod
    def of(cls, sheet: Sheet, ways: Array) -> "Ways":
        """Return those of a sheet of one row."""
        values, p = np.ascontiguousarray((sheet.v @ ways).T), sheet.weights[0]
        below = float(p.sum())
        l = below + float(sink_of(sheet)[0, 0])
        side = (sheet.out - sheet.truth)[0] @ ways * l
        return cls(ways, values, p * values, values @ p, sheet.out[0] @ ways, side, below, l)


@dataclass(frozen=True)
class Part:
    """What the keys of a row change in its equations, and in its denominator, which comes last.

    Shapes: sums of the first 0, 1, ..., n keys [Dv + 1, n + 1]; folded, sums of the keys that are
    alike modulo _FOLD [Dv + 1, F]; side [Dv].
    """

    sums: np.ndarray
    folded: np.ndarray
    side: np.ndarray
    l: float

    @classmethod
    def of(cls, each: Array, below: Array, side: Array, l: float, n: int) -> "Part":
        """Return the part of changes each [Dv, L], below [L]; L may be less than n."""
        x = np.zeros((len(each) + 1, n))
        x[:-1, : len(below)], x[-1, : len(below)] = each, below
        sums = np.zeros((len(x), n + 1))
        np.cumsum(x, 1, out=sums[:, 1:])
        whole = n // _FOLD * _FOLD
        folded = x[:, whole:]
        if whole:
            folded = x[:, :whole].reshape(len(x), -1, _FOLD).sum(1)
            folded[:, : n - whole] += x[:, whole:]
        return cls(sums, folded, side, l)

    def of_runs(self, first: Any, last: Any) -> tuple[Array, Array, Array, float]:
        """Return sums over runs of keys. Shapes: [S, Dv], [S]; side, l."""
        total = np.atleast_2d((self.sums[:, last] - self.sums[:, first]).T)
        return total[:, :-1], total[:, -1], self.side, self.l

    def of_flags(self, flags: Array) -> tuple[Array, Array, Array, float]:
        """Return sums over sets of keys that repeat after _FOLD keys. Shapes: flags [S, n]."""
        total = flags[:, : self.folded.shape[1]] @ self.folded.T
        return total[:, :-1], total[:, -1], self.side, self.l
