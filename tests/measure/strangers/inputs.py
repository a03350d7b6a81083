"""Families of inputs that resemble those of models and of test suites."""

import zlib
from collections.abc import Callable, Mapping

import numpy as np

from labkernels.measure.mistakes.attention import Call, Shape, drawn_call, normal

__all__ = ["FAMILIES", "SHAPES", "Call", "Shape", "call", "drawn_call"]

SHAPES = (
    Shape(2, 4, 2, 1, 200, 64),
    Shape(1, 8, 2, 1, 777, 64),
    Shape(1, 4, 4, 48, 48, 32, causal=True),
    Shape(1, 4, 1, 33, 130, 64, causal=True),
    Shape(2, 2, 2, 16, 96, 128),
    Shape(3, 8, 8, 1, 64, 64),
)


def changed(change: Callable) -> Callable:
    """Return a family that changes normal q, k and v: change(rng, q, k, v) returns the three."""

    def family(rng, shape: Shape):
        return change(rng, *normal(rng, shape))

    return family


def drawn(draw: Callable) -> Callable:
    """Return a family that draws q, k and v alike: draw(rng, shape) returns one of them."""

    def family(rng, shape: Shape):
        return tuple(draw(rng, x.shape) for x in normal(rng, shape))

    return family


def _sink(rng, q, k, v):
    k[:, :, 0] = 2 * q.mean((1, 2))[:, None]
    v[:, :, 0] *= 0.1
    return q, k, v


def _spike(rng, q, k, v):
    v *= 0
    place = tuple(int(rng.integers(n)) for n in v.shape)
    v[place] = 8
    return q, k, v


def _one_hot(rng, shape):
    x = np.zeros(shape)
    np.put_along_axis(x, rng.integers(shape[-1], size=(*shape[:-1], 1)), 4.0, -1)
    return x


def _alternating(shape, axis: int):
    sign = np.where(np.arange(shape[axis]) % 2, -1.0, 1.0)
    return np.moveaxis(
        np.broadcast_to(sign, np.moveaxis(np.empty(shape), axis, -1).shape), -1, axis
    )


def _like_first_head(x):
    return np.broadcast_to(x[:1, :1], x.shape).copy()


def _every(x, period: int):
    """Return x with the keys of the first period repeated."""
    return x[:, :, np.arange(x.shape[2]) % period]


FAMILIES: dict[str, Callable] = {
    "normal": normal,
    "peaky": changed(lambda rng, q, k, v: (6 * q, k, v)),
    "very peaky": changed(lambda rng, q, k, v: (30 * q, k, v)),
    "flat": changed(lambda rng, q, k, v: (0.01 * q, k, v)),
    "sink": changed(_sink),
    "v of mean 1": changed(lambda rng, q, k, v: (q, k, v + 1)),
    "v of mean 100": changed(lambda rng, q, k, v: (q, k, 100 + 0.1 * v)),
    "v subnormal": changed(lambda rng, q, k, v: (q, k, 1e-7 * v)),
    "k zero": changed(lambda rng, q, k, v: (q, 0 * k, v)),
    "k and v equal rows": changed(
        lambda rng, q, k, v: (q, 0 * k + k[:, :, :1], 0 * v + v[:, :, :1])
    ),
    "equal heads": changed(lambda rng, *xs: tuple(_like_first_head(x) for x in xs)),
    "keys repeat, v does not": changed(lambda rng, q, k, v: (q, _every(k, 4), v)),
    "small integers": drawn(lambda rng, shape: rng.integers(-3, 4, shape).astype(float)),
    "integers 0 to 9": drawn(lambda rng, shape: rng.integers(0, 10, shape) / 4.0),
    "plus or minus 1": drawn(lambda rng, shape: rng.choice([-1.0, 1.0], shape)),
    "one hot": drawn(_one_hot),
    "alternating v": changed(lambda rng, q, k, v: (q, k, 1.0 * _alternating(v.shape, 2))),
    "one spike": changed(_spike),
    "ramp v": changed(lambda rng, q, k, v: (q, k, 0 * v + np.arange(v.shape[2])[:, None] / 64)),
    "lognormal v": changed(lambda rng, q, k, v: (q, k, np.exp(1.5 * v))),
    "falling scores": changed(lambda rng, q, k, v: (abs(q), -np.sort(-k, axis=2), v)),
}

# Of a list that was longer; a call is drawn from its seed and this number.
_PLACES = (0, 1, 2, 3, 4, 7, 8, 11, 16, 17, 19, 21, 22, 23, 24, 27, 29, 32, 34, 36, 38)
NUMBERS = dict(zip(FAMILIES, _PLACES, strict=True))


def call(
    family: str,
    shape: Shape,
    dtype: str,
    seed: int,
    families: Mapping[str, Callable] = FAMILIES,
) -> Call:
    """Return the call of a family; the same seed gives the same bits on every machine."""
    if family in FAMILIES:
        return drawn_call(FAMILIES[family], [seed, NUMBERS[family]], shape, dtype)
    return drawn_call(families[family], [seed, zlib.crc32(family.encode())], shape, dtype)
