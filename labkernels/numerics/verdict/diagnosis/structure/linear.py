"""Fits numbers that turn right terms into a wrong output, with their errors and the rms left."""

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkernels.numerics.arrays import ZERO, Array

LEFT = 1.5  # rms of z that is left, as in whole_kernel
SMALLER_BY = 3.0
_SHARE = 0.5  # most numbers per equation: more numbers explain anything
_RANK = 1e-13  # least eigenvalue of a direction, as a part of the largest
_ROUNDS = 8
_HALVINGS = 6
_WHOLE = 0.2  # largest distance from a whole number, and largest error of a known number
_MOST = 2**30  # products of a system of equations: more take seconds


@dataclass(frozen=True)
class Terms:
    """Rows as functions of numbers x: (above x) / (below x), or above x alone.

    Shapes: above [R, G, Dv], below [R, G] or None, out, sigma [R, Dv].
    """

    above: np.ndarray
    below: np.ndarray | None
    out: np.ndarray
    sigma: np.ndarray

    @functools.cached_property
    def above_of_elements(self) -> np.ndarray:
        """The terms above, the numbers last, as in systems of equations. Shapes: [R, Dv, G]."""
        return np.ascontiguousarray(self.above.swapaxes(1, 2))

    def outputs(self, x: Array) -> np.ndarray:
        """Return the rows for numbers x. Shapes: [R, Dv]."""
        above = self.above_of_elements @ x
        return above if self.below is None else above / (self.below @ x)[:, None]

    def changes(self, x: Array, outputs: Array) -> np.ndarray:
        """Return by how many sigma each number moves each element. Shapes: [R, Dv, G]."""
        if self.below is None:
            return self.above_of_elements / self.sigma[..., None]
        found = self.below[:, None] * outputs[..., None]
        np.subtract(self.above_of_elements, found, out=found)
        found /= ((self.below @ x)[:, None] * self.sigma)[..., None]
        return found


@dataclass(frozen=True)
class Fit:
    """Numbers x, their standard errors, the rms of z that they leave, and the rms before."""

    x: np.ndarray
    errors: np.ndarray
    rms: float
    was: float

    @property
    def explains(self) -> bool:
        """Whether only rounding is left."""
        return self.rms <= LEFT and self.rms * SMALLER_BY <= self.was

    @property
    def whole(self) -> np.ndarray:
        """The numbers as whole numbers; NaN where they surely or possibly are none. Shapes: [G]."""
        near = np.rint(self.x)
        sure = (np.abs(self.x - near) <= np.minimum(_WHOLE, 0.02 + 5 * self.errors)) & (
            self.errors < _WHOLE
        )
        return np.where(sure, near, np.nan)

    @property
    def known(self) -> np.ndarray:
        """Whether the equations determine a number. Shapes: [G], bool."""
        return self.errors < _WHOLE


def too_many(n: int, equations: int) -> bool:
    """Return whether n numbers would explain the equations by chance, or take too long."""
    return n > _SHARE * equations or n * n * equations > _MOST


@np.errstate(all="ignore")
def fitted(terms: list[Terms], n: int, was: float) -> Fit | None:
    """Return the n numbers that all terms share; None if they cannot be fitted."""
    equations = sum(part.out.size for part in terms)
    if not terms or too_many(n, equations):
        return None
    ratio = terms[0].below is not None
    starts = [_first(terms), np.ones(n)] if ratio else [np.zeros(n)]
    tried = [_solved(terms, x, ratio=ratio) for x in starts if x is not None]
    found = [each for each in tried if each is not None]
    if not found:
        return None
    _, x, errors, rank = min(found, key=lambda each: each[0])
    return _judged(terms, x, errors, rank, was, ratio=ratio)


def _solved(terms: list[Terms], x: Array, *, ratio: bool) -> tuple[float, Array, Array, int] | None:
    """Return the rms, numbers, their errors and the count of fitted directions, from a start."""
    best, damping = None, 0.0
    for _ in range(_ROUNDS if ratio else 1):
        square, side = _sides(terms, x)
        if not (np.isfinite(square).all() and np.isfinite(side).all()):
            break
        size = np.sqrt(np.diag(square))
        size[size == 0] = 1.0
        power, axes = np.linalg.eigh(square / np.outer(size, size))
        kept = power > _RANK * max(power[-1], 1e-300)
        axes, power = axes[:, kept], power[kept]
        errors = np.sqrt((axes**2 / power).sum(1)) / size
        errors[(axes**2).sum(1) < 0.5] = np.inf  # no equation determines the number
        before = left(terms, x) if ratio else np.inf
        if best is None or before < best[0]:
            best = before, x, errors, len(power)
        for _ in range(_HALVINGS):
            step = (axes / (power + damping)) @ (axes.T @ (side / size)) / size
            after = left(terms, x + step)
            if after < before:
                damping /= 10
                break
            damping = max(10 * damping, 1e-6)
        else:
            break
        x = x + step
        best = after, x, errors, len(power)
        if after > 0.9 * before:
            break
    return best


def _sides(terms: list[Terms], x: Array) -> tuple[Array, Array]:
    """Return the normal equations of a step from x."""
    square, side = np.zeros((len(x), len(x))), np.zeros(len(x))
    for part in terms:
        guess = part.outputs(x)
        changes = part.changes(x, guess).reshape(-1, len(x))
        square += changes.T @ changes
        side += changes.T @ ((part.out - guess) / part.sigma).ravel()
    return square, side


def _judged(
    terms: list[Terms], x: Array, errors: Array, rank: int, was: float, *, ratio: bool
) -> Fit:
    if ratio:
        usual = _usual(x, errors)
        x, errors = x / usual, errors / abs(usual)
    rms = left(terms, x, rank)
    return Fit(x, errors, rms if np.isfinite(rms) else np.inf, was)


def left(terms: list[Terms], x: Array, rank: int = 0) -> float:
    """Return the rms of z that numbers x leave, of which `rank` were fitted."""
    equations = sum(part.out.size for part in terms)
    total = sum(float((((p.out - p.outputs(x)) / p.sigma) ** 2).sum()) for p in terms)
    return float(np.sqrt(total / max(equations - rank, 1)))


def _first(terms: list[Terms]) -> Array | None:
    """Return the numbers of a ratio: those that come nearest to (above - out below) x = 0."""
    sides, squares = ZERO, ZERO
    for p in terms:
        below = np.asarray(p.below)
        a = (p.above_of_elements - below[:, None] * p.out[..., None]) / p.sigma[..., None]
        a = a.reshape(p.out.size, -1)
        sides, squares = sides + a.T @ a, squares + (below**2).sum(0)
    size = squares**0.5
    size[size == 0] = 1.0
    if not np.isfinite(sides).all():
        return None
    axes = np.linalg.eigh(sides / np.outer(size, size))[1]
    x = axes[:, 0] / size
    return x / _usual(x, np.zeros(len(x)))


def _usual(x: Array, errors: Array) -> float:
    """Return the number that most others equal, or the median of the large numbers."""
    good = np.isfinite(errors) & (x != 0)
    if not good.any():
        return 1.0
    some = x[good]
    top = some[np.abs(some).argmax()]
    large = some[some / top > 0.02]
    near = np.abs(large[:, None] / large - 1) < 0.02
    at = near.sum(0)
    return float(large[at.argmax()]) if at.max() > 1 else float(np.median(large))


def rms_before(sheets: Iterable[Any]) -> float:
    """Return the rms of z of the rows as they are."""
    pairs = [(((s.out - s.truth) / s.sigma) ** 2) for s in sheets]
    return float(np.sqrt(sum(float(z.sum()) for z in pairs) / max(sum(z.size for z in pairs), 1)))
