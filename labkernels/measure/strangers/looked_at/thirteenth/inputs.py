"""Shapes and families of inputs of the thirteenth set."""

from collections.abc import Callable

import numpy as np

from labkernels.measure.strangers.inputs import Shape, changed, drawn

SHAPES = (
    Shape(2, 10, 2, 1, 347, 96),  # a decode step, five heads a group
    Shape(1, 8, 4, 1, 701, 64),  # a long decode step
    Shape(3, 6, 2, 6, 227, 80, causal=True),  # six drafted tokens
    Shape(2, 9, 3, 13, 187, 64, causal=True),  # thirteen drafted tokens
    Shape(2, 8, 2, 24, 152, 128, causal=True),  # a chunk of a prefill
    Shape(2, 4, 2, 41, 41, 112, causal=True),  # a prompt
    Shape(2, 6, 3, 33, 126, 160),  # cross attention of wide heads
    Shape(2, 8, 4, 59, 139, 64, causal=True, v_dim=96),  # a long chunk, V wider than K
)

_NF4 = np.array([-1, -0.696, -0.525, -0.395, -0.284, -0.185, -0.091, 0])
_LEVELS = np.concatenate([_NF4, [0.08, 0.161, 0.246, 0.338, 0.441, 0.563, 0.723, 1]])


def _zipf(rng, x, words: int = 60):
    """Words come as often as the inverse of their rank; a token is its word and some noise."""
    book = rng.standard_normal((words, x.shape[3]))
    share = 1 / np.arange(1, words + 1)
    return book[rng.choice(words, x.shape[:3], p=share / share.sum())] + 0.3 * x


def _power_law(rng, q, k, v):
    """The spectrum of q and k falls by a power law, in axes that are turned."""
    turn = np.linalg.qr(rng.standard_normal((q.shape[-1], q.shape[-1])))[0]
    size = np.arange(1.0, q.shape[-1] + 1) ** -0.4
    size *= (size**2).mean() ** -0.5
    return q * size @ turn, k * size @ turn, v


def _semicircle(rng, shape):
    """Wigner's law: the first coordinate of a point in a disc of radius 2."""
    return 2 * np.sqrt(rng.random(shape)) * np.cos(2 * np.pi * rng.random(shape))


def _skewed(rng, shape):
    """A normal number of one sign plus one of both."""
    return 0.9 * abs(rng.standard_normal(shape)) + 0.6 * rng.standard_normal(shape) - 0.6


def _projections(rng, q, k, v):
    """Tokens with common parts go through a layer; q and k are normed, as before a rotation."""
    size = q.shape[-1]
    token = rng.standard_normal((*k.shape[:3], 64)) + rng.standard_normal(64)
    to_k, to_v = rng.standard_normal((64, size)), rng.standard_normal((64, v.shape[3]))
    k, v = token @ to_k, np.tanh(token / 2) @ to_v / 8
    q = q + 0.4 * k.mean((1, 2))[:, None, None] / 8
    q, k = (x / np.sqrt((x**2).mean(-1, keepdims=True)) for x in (q, k))
    return q, k, v


def _normal_float(x):
    """Numbers have 4 bits, with levels like a normal quantile, and a scale for each 16."""
    part = x.reshape(*x.shape[:-1], -1, 16)
    top = abs(part).max(-1, keepdims=True)
    level = abs(part[..., None] / top[..., None] - _LEVELS).argmin(-1)
    return (_LEVELS[level] * top).reshape(x.shape)


def _ternary(rng, shape):
    """Signs and zeros have a size for each channel."""
    size = np.exp(0.5 * rng.standard_normal(shape[-1]))
    return size * rng.choice([-1.0, 0.0, 1.0], shape)


def _walsh(rng, x):
    """Tokens are functions of Walsh, of two signs, with noise."""
    row = rng.integers(1, 64, x.shape[:3])[..., None]
    bits = sum(((row & np.arange(x.shape[3])) >> i) & 1 for i in range(6))
    return np.where(bits % 2, -0.8, 0.8) + 0.6 * x


def _runs(rng, x):
    """A token stays for some places, with a little noise."""
    start = np.maximum.accumulate(
        np.where(rng.random(x.shape[:3]) < 0.4, np.arange(x.shape[2]), 0), 2
    )
    return np.take_along_axis(x, start[..., None], 2) + 0.15 * rng.standard_normal(x.shape)


def _look_back(rng, q, k, v):
    """Each head looks some places back: its queries resemble the keys that lie there."""
    place = np.arange(q.shape[2]) + k.shape[2] - q.shape[2]
    for h in range(q.shape[1]):
        at = np.maximum(place - 5 * h, 0)
        q[:, h] = 0.8 * q[:, h] + 0.5 * k[:, h * k.shape[1] // q.shape[1], at]
    return q, k, v


def _kronecker(rng, shape):
    """Multiples of irrational numbers, modulo 1, fill an interval evenly."""
    at = np.arange(np.prod(shape)).reshape(shape) * (5**0.5 - 1) / 2
    return 2.2 * ((at + rng.random(shape[:-1])[..., None]) % 1) - 1.0


FAMILIES: dict[str, Callable] = {
    "words by Zipf's law": changed(lambda rng, q, k, v: (q, _zipf(rng, k), _zipf(rng, v))),
    "a spectrum by a power law": changed(_power_law),
    "Wigner's semicircle": drawn(_semicircle),
    "skew normal": drawn(_skewed),
    "hyperbolic secant": drawn(
        lambda rng, shape: np.log(np.tan(np.pi / 2 * rng.uniform(0.001, 0.999, shape))) / 1.6
    ),
    "geometric": drawn(lambda rng, shape: 0.6 * (rng.geometric(0.45, shape) - 2.0)),
    "squared ReLU in v": changed(lambda rng, q, k, v: (1.3 * q, k, np.maximum(v, 0) ** 2)),
    "projections of tokens": changed(_projections),
    "normal float of 4 bits": changed(lambda rng, q, k, v: (q, _normal_float(k), _normal_float(v))),
    "three values times a size": drawn(_ternary),
    "functions of Walsh": changed(lambda rng, q, k, v: (q, _walsh(rng, k), _walsh(rng, v))),
    "runs of one token": changed(lambda rng, q, k, v: (q, _runs(rng, k), _runs(rng, v))),
    "heads that look back": changed(_look_back),
    "multiples modulo 1": drawn(_kronecker),
}
