"""Shapes and families of inputs of the fifteenth set."""

from collections.abc import Callable

import numpy as np

from labkernels.measure.strangers.inputs import Shape, changed, drawn

SHAPES = (
    Shape(2, 10, 2, 1, 421, 64),  # a decode step, five heads a group
    Shape(2, 12, 2, 1, 338, 96),  # a decode step, six heads a group
    Shape(3, 6, 2, 4, 197, 80, causal=True),  # four drafted tokens
    Shape(2, 14, 2, 3, 231, 64, causal=True),  # three drafted tokens, seven heads a group
    Shape(2, 4, 2, 40, 193, 128, causal=True),  # a chunk of a prefill
    Shape(2, 8, 4, 61, 61, 64, causal=True),  # a prompt
    Shape(2, 6, 2, 29, 151, 112),  # cross attention
    Shape(2, 4, 2, 45, 126, 96, causal=True, v_dim=64),  # a chunk, V narrower than K
    Shape(5, 4, 2, 9, 143, 48, causal=True),  # a short chunk of five requests
)


def _johnson(rng, shape):
    """Johnson's SU law: skewed, with tails heavier than a normal one."""
    return 0.7 * np.sinh((rng.standard_normal(shape) - 0.4) / 1.3) + 0.3


def _kumaraswamy(rng, shape):
    """Kumaraswamy's law about 0, which has most of its mass near one end."""
    return 3.0 * ((1 - rng.random(shape) ** (1 / 3.0)) ** (1 / 0.8) - 0.22)


def _hermite(rng, shape):
    z = rng.standard_normal(shape)
    return 0.35 * (z**3 - 3 * z) + 0.2 * rng.standard_normal(shape)


def _chaos(rng, x):
    """Each channel follows the logistic map from token to token."""
    at = rng.uniform(0.05, 0.95, (*x.shape[:2], x.shape[-1]))
    out = np.empty(x.shape)
    for j in range(x.shape[2]):
        at = 3.93 * at * (1 - at)
        out[:, :, j] = at
    return 3.2 * (out - 0.5)


def _four_bits(x):
    """A cache in e2m1, with a scale for each 16 numbers of a token."""
    part = x.reshape(*x.shape[:-1], -1, 16)
    scale = abs(part).max(-1, keepdims=True) / 6
    grid = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    nearest = abs(abs(part / scale)[..., None] - grid).argmin(-1)
    return (np.sign(part) * grid[nearest] * scale).reshape(x.shape)


def _tree(rng, x):
    """Tokens are leaves of a binary tree, and the sum of the vectors on the way to them."""
    n, total, level = x.shape[2], 0.4 * x, 1
    while level < n:
        nodes = rng.standard_normal((*x.shape[:2], level, x.shape[-1]))
        total = total + 0.45 * nodes[:, :, np.arange(n) * level // n]
        level *= 2
    return total


def _tiles_of_sizes(x):
    size = np.where(np.arange(x.shape[2]) // 16 % 2, 1.6, 0.4)
    return x * size[:, None]


def _ranks(x):
    """Each channel holds the ranks of its numbers among the tokens."""
    n = x.shape[2]
    return 3.4 * (x.argsort(2).argsort(2) + 0.5) / n - 1.7


def _corners(rng, x):
    """Tokens lie near the corners of a simplex, which have equal distances."""
    corners = np.linalg.qr(rng.standard_normal((x.shape[-1], x.shape[-1])))[0]
    at = rng.integers(min(12, x.shape[-1]), size=x.shape[:3])
    return 0.9 * x.shape[-1] ** 0.5 * corners[at] + 0.3 * x


def _across(rng, q, k, v):
    """Keys share a mean to which every query is orthogonal."""
    mean = rng.standard_normal(q.shape[-1])
    mean /= np.linalg.norm(mean)
    return 1.5 * (q - (q @ mean)[..., None] * mean), k + 9 * mean, v


def _bridges(rng, x):
    """Walks along the tokens that end where they began."""
    n = x.shape[2]
    walk = np.cumsum(x, 2)
    back = walk - np.arange(1, n + 1)[:, None] / n * walk[:, :, -1:]
    return 2.4 * back / n**0.5 + 0.2 * rng.standard_normal(x.shape)


def _words(rng, q, k, v):
    """Frequent words have small keys and values, rare words large ones."""
    kind = rng.geometric(0.15, k.shape[:3])[..., None]
    size = 0.35 + 0.25 * np.log2(1 + kind)
    return q, k * size, v * size


FAMILIES: dict[str, Callable] = {
    "Johnson's law": drawn(_johnson),
    "inverse Gaussian less its mean": drawn(lambda rng, shape: rng.wald(1.0, 1.4, shape) - 1),
    "Kumaraswamy's law": drawn(_kumaraswamy),
    "third Hermite polynomial": drawn(_hermite),
    "a chaotic map": changed(lambda rng, q, k, v: (q, _chaos(rng, k), _chaos(rng, v))),
    "e2m1, a scale for each 16": changed(lambda rng, q, k, v: (q, _four_bits(k), _four_bits(v))),
    "a tree of tokens": changed(lambda rng, q, k, v: (q, _tree(rng, k), _tree(rng, v))),
    "quiet and loud tiles": changed(
        lambda rng, q, k, v: (1.4 * q, _tiles_of_sizes(k), _tiles_of_sizes(v))
    ),
    "ranks among the tokens": changed(lambda rng, q, k, v: (q, _ranks(k), _ranks(v))),
    "corners of a simplex": changed(lambda rng, q, k, v: (q, _corners(rng, k), _corners(rng, v))),
    "queries across the mean key": changed(_across),
    "Brownian bridges": changed(lambda rng, q, k, v: (q, _bridges(rng, k), _bridges(rng, v))),
    "rare words louder": changed(_words),
}
