"""Rows with their errors, and the sums over keys that the matched filters need of them.

P is not yet divided by its sum in what the sums count, since division is cheaper afterwards.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from labkernels.kept import computed_once
from labkernels.numerics.arrays import ZERO, Array, float64, moved, namespace
from labkernels.numerics.error import sigma as error_sigma
from labkernels.numerics.error.sigma import Squares
from labkernels.numerics.truth.frame import Frame
from labkernels.numerics.truth.rows import Block, Rows
from labkernels.policy import NumericPolicy
from labkernels.units import LOG2_E

DIRECTIONS = ("common mode", "P truncated", "scale", "signed bias")
TINY = 1e-300  # in place of a division by 0
_NO_UNDERFLOW = 2.0**40  # a factor on variances of P, so that fp32 holds their squares


@dataclass(frozen=True)
class ErrorRows:
    """Rows and their errors, in units of the frame's size. Shapes: error, sigma [Hkv, R, Dv]."""

    frame: Frame
    error: np.ndarray
    sigma: np.ndarray
    policy: NumericPolicy

    @classmethod
    def of(cls, frame: Frame, error: Array, sigma: Array, policy: NumericPolicy) -> "ErrorRows":
        """Return the rows, given errors and sigmas [Hkv, R, Dv]; 1 where sigma is 0."""
        error = np.nan_to_num(error, posinf=0.0, neginf=0.0)
        some = namespace(sigma).where(sigma > 0, sigma, 1.0)
        return cls(frame, moved(error, sigma) / frame.size, some / frame.size, policy)

    @property
    def rows(self) -> Rows:
        """The rows."""
        return self.frame.rows

    @computed_once
    def o(self) -> Array:
        """The output, in units of the frame's size. Shapes: [Hkv, R, Dv]."""
        return self.rows.o / self.frame.size

    @computed_once
    def variance(self) -> Array:
        """The expected variance of the errors. Shapes: [Hkv, R, Dv]."""
        return self.sigma**2

    def about(self, moves: float) -> Array:
        """Return what weights' errors act about: o if they move the denominator, else 0."""
        return self.centred if moves else self.frame.inside(0.0 * self.o[:, :1])

    @computed_once
    def centred(self) -> Array:
        """The output less the mean of the values. Shapes: [Hkv, R, Dv]."""
        return self.frame.inside(self.rows.o)

    @property
    def abouts(self) -> tuple[float, ...]:
        """For each possible denominator, 1 if a weight's error moves the denominator too, else 0.

        The error of a weight's exponent always moves it, and outweighs the rounding of P in fp32,
        and that of P in 16 bits where scores are huge.
        """
        fine = self.policy.p == "fp32" or error_sigma.scores_show(self.rows, self.policy)
        kinds = {float(fine or kind == "rounded") for kind in self.policy.denominators}
        return tuple(sorted(kinds))


class Directions:
    """Sums over keys from which the vectors of DIRECTIONS follow; P is not yet divided."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.sums, self.counts, self.w2 = ZERO, ZERO, ZERO

    def see(
        self, block: Block, score: Array, p: Array, spacing: Array, variance: Array, values: Array
    ) -> None:
        """Count a block of keys.

        Shapes: score, p, spacing of P, variance of p's error [Hkv, R, n]; values [Hkv, n, 2 Dv].
        """
        both = error_sigma.side_by_side(p, 2)
        scored = both[:, 0]
        scored[...] = score
        if block.hidden is not None or not block.unbiased:
            scored[p == 0] = 0.0  # where the score is -inf
        scored *= p
        both[:, 1] = spacing
        self.counts = self.counts + float64(both.sum(-1)[..., None])
        self.sums = self.sums + float64(folded(both, values[..., : values.shape[-1] // 2]))
        large = variance * _NO_UNDERFLOW
        large *= large
        self.w2 = self.w2 + float64(large.sum(-1))

    def vectors(self, request: ErrorRows, squares: Squares) -> tuple[Any, ...]:
        """Return the vectors of DIRECTIONS, and how many keys share P's rounding."""
        o, frame, xp = request.o, self.frame, namespace(request.error)
        per = moved(np.array([1 / LOG2_E, 0.5])[:, None, None], o)  # natural scores, half a spacing
        per = per / request.rows.softmax.divisor[:, None]
        sums, counts = self.sums * per, self.counts * per
        w1, w2 = squares.of_variance[0][..., 0] * _NO_UNDERFLOW, self.w2
        sharing = xp.where(w2 > 0, w1**2 / xp.where(w2 > 0, w2, 1.0), 1.0)
        bias = xp.sign(o) * request.variance * frame.size
        # A common mode that is allowed must not show as a scale. It would without this projection,
        # because sigma jumps where |o| passes a power of 2.
        scale, along_o = sums[:, 0] - counts[:, 0] * request.centred, o / request.variance
        power = xp.clip(dot(o, along_o), TINY, None)
        scale = scale - (dot(scale, along_o) / power)[..., None] * o
        truncated = -sums[:, 1] - counts[:, 1] * (frame.mean / frame.size)
        return xp.stack([o, truncated, scale, bias], 1), sharing


class Sums:
    """Sums over keys of their weights' variances, with their values and with tests of the values.

    The sums are in fp32 where P and the store have 16 bits, else in float64. In fp32 a block of
    1024 keys errs by at most 2^-14 of its terms, while the error model errs by 15 %. The vectors x
    are the tests of DIRECTIONS, then probes. Shapes: x [Hkv, T, R, Dv].
    """

    def __init__(self, request: ErrorRows, x: Array, squares: Squares) -> None:
        self.xp, self.request = namespace(x), request
        self.norm = self.xp.clip(self.xp.amax(abs(x), -1)[..., None], TINY, None)
        self.x = x / self.norm
        self.narrow_x = request.frame.narrowed(self.x)
        self.of_1, values = squares.of_variance
        width = values.shape[-1] // 2
        self.of_v, self.of_squares = values[..., :width], values[..., width:]
        self.shared, self.left, self.squares = ZERO, ZERO, ZERO

    def add(self, shown: Array, variance: Array, v: Array) -> None:
        """Count a block of keys, and overwrite `shown`.

        Shapes: shown, <x / norm, v>, [Hkv, T, R, n]; variance of p's error [Hkv, R, n]; v [Hkv, n,
        Dv].
        """
        n = len(DIRECTIONS)
        tests, probes = shown[:, :n], shown[:, n:]
        tests *= tests
        shown *= variance[:, None]
        self.squares = self.squares + float64(tests.sum(-1))
        self.shared = self.shared + float64(folded(probes, v))
        self.left = self.left + float64(probes.sum(-1)[..., None])

    def divide(self) -> None:
        """Divide all sums, which are quadratic in P, by the square of P's sum."""
        per = self.request.rows.softmax.divisor**-2.0
        self.squares = self.squares * per[:, None, :, 0]
        self.shared, self.left = (
            x * (per[:, None] * self.norm[:, len(DIRECTIONS) :]) for x in (self.shared, self.left)
        )
        self.of_1, self.of_v, self.of_squares = (
            x * per for x in (self.of_1, self.of_v, self.of_squares)
        )

    def of_tests(self, about: Array) -> Array:
        """Return the sum of <x, v - about>^2 of each of DIRECTIONS. Shapes: about [Hkv, R, Dv]."""
        x, norm = (part[:, : len(DIRECTIONS)] for part in (self.x, self.norm[..., 0]))
        along, mixed = (dot(x, y[:, None]) for y in (about, self.of_v))
        total = self.squares - 2 * along * mixed + along**2 * self.of_1[:, None, :, 0]
        return self.xp.clip(total, 0.0, None) * norm**2

    def of_probes(self, probes: Array, about: Array) -> Array:
        """Return the sum of <x, v - about> (v - about) per probe x. Shapes: [Hkv, T, R, Dv]."""
        along = dot(probes, about[:, None])[..., None]
        left = self.left - along * self.of_1[:, None]
        shared = self.shared - along * self.of_v[:, None]
        shared -= left * about[:, None]
        return shared

    def of_values(self, about: Array) -> Array:
        """Return the sum of (v - about)^2. Shapes: [Hkv, R, Dv]."""
        total = self.of_squares - 2 * about * self.of_v + self.of_1 * about**2
        return self.xp.clip(total, 0.0, None)


def dot(a: Array, b: Array) -> Array:
    """Return the sum of a b over the last axis."""
    # One pass in NumPy. In torch, einsum makes it a product of many small matrices.
    return np.einsum("...d,...d->...", a, b) if namespace(a) is np else (a * b).sum(-1)


def folded(vectors: Array, matrix: Array) -> Array:
    """Return [Hkv, T, R, n] @ [Hkv, n, m] -> [Hkv, T, R, m] as one product for all T vectors."""
    heads, _, _, n = vectors.shape
    return (vectors.reshape(heads, -1, n) @ matrix).reshape(*vectors.shape[:3], matrix.shape[-1])
