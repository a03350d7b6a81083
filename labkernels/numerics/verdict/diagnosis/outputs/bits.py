"""Outputs that keep fewer bits than their format has: rounded to nearest, cut, down or up."""

import numpy as np

from labkernels import formats
from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.one_row import Match

_LEFT = 1.5  # rms of z that may be left, as in whole_kernel
_SMALLER_BY = 1.5  # fewer bits that explain no more than the format itself are no name
_LEAST = 64  # elements: fewer may have few bits by chance
_WHOLE = 53  # bits of float64

# By how many halves of a step each way moves numbers, and by what it is called.
_WAYS = (
    ("out was rounded to {} bits", lambda x: 0.0 * x),
    ("out was cut toward 0, to {} bits", lambda x: -np.sign(x)),
    ("out was rounded down, to {} bits", lambda x: -np.ones_like(x)),
    ("out was rounded up, to {} bits", lambda x: np.ones_like(x)),
    ("out was rounded away from 0, to {} bits", np.sign),
)


def bits_of(x: Array) -> np.ndarray:
    """Return how many bits each number needs, from its first to its last that is 1; 0 for 0."""
    whole = np.ldexp(np.frexp(x)[0], _WHOLE).astype(np.int64)
    lowest = np.frexp((whole & -whole).astype(float))[1]  # 1 + the place of the last bit
    return np.where(whole == 0, 0, _WHOLE + 1 - lowest)


def of_output(out: Array, truth: Array, sigma: Array, out_format: str) -> list[Match]:
    """Return a name if all elements of wrong rows have fewer bits. Shapes: [R, Dv] each."""
    if out.size < _LEAST or not np.isfinite(out).all():
        return []
    bits = int(bits_of(out).max())
    if not 0 < bits < formats.named(out_format).fraction_bits:
        return []
    step = np.ldexp(1.0, np.frexp(truth)[1] - bits)
    variance = sigma**2 + step**2 / 12
    was = float(np.sqrt(np.mean((out - truth) ** 2 / np.maximum(sigma**2, 1e-300))))
    found = []
    for words, moved in _WAYS:
        z = (out - truth - moved(truth) * step / 2) / np.sqrt(np.maximum(variance, 1e-300))
        left = float(np.sqrt((z**2).mean()))
        found.append((left, words.format(bits)))
    left, name = min(found)
    if left <= _LEFT and left * _SMALLER_BY <= was:
        return [Match(name, "every element", left, was, True)]
    return []
