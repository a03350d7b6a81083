"""Shapes and families of inputs of the eighteenth set."""

from collections.abc import Callable

import numpy as np

from labkernels.measure.strangers.inputs import Shape, changed, drawn

SHAPES = (
    Shape(2, 8, 4, 1, 389, 64),  # a decode step, two heads per group
    Shape(2, 9, 3, 4, 227, 64, causal=True),  # four drafted tokens, three KV heads
    Shape(2, 6, 2, 35, 167, 128, causal=True),  # a chunk of a prefill
    Shape(3, 8, 2, 1, 269, 80),  # a decode step of three requests
    Shape(2, 8, 4, 6, 181, 96, causal=True),  # six drafted tokens
    Shape(2, 4, 2, 53, 53, 64, causal=True),  # a prompt
    Shape(2, 6, 3, 23, 137, 112),  # cross attention
    Shape(2, 4, 2, 33, 121, 96, causal=True, v_dim=128),  # a chunk, V wider than K
    Shape(4, 4, 2, 11, 151, 48, causal=True),  # a short chunk of four requests
)


def _logistic(rng, shape):
    """The logistic law, of variance 1."""
    return rng.logistic(scale=3**0.5 / np.pi, size=shape)


def _triangular(rng, shape):
    """A triangle from -1 to 2 with its top at 0."""
    return 1.3 * rng.triangular(-1.0, 0.0, 2.0, shape)


def _gumbel(rng, shape):
    """Gumbel's law about its mean: the upper tail is long."""
    return np.clip(rng.gumbel(-0.45, 0.8, shape), -4, 5)


def _two_sizes_of_channels(rng, x):
    """One channel in six is three times as large as the others."""
    return x * np.where(np.arange(x.shape[-1]) % 6 == 1, 2.1, 0.7)


def _moving_mean(x):
    """Each token is a mean of eight in a row, and noise."""
    total = sum(np.roll(x, i, 2) for i in range(8))
    return 0.75 * total / 8**0.5 + 0.6 * x


def _sparse(rng, x):
    """Two numbers in three are near 0."""
    return x * np.where(rng.random(x.shape) < 2 / 3, 0.15, 1.6)


def _turns_of_speakers(rng, x):
    """Runs of 13 tokens belong to two speakers in turn, each with a mean of its own."""
    mean = 0.6 * rng.standard_normal((2, x.shape[1], 1, x.shape[-1]))
    return x * 0.85 + mean[np.arange(x.shape[2]) // 13 % 2, :, 0].swapaxes(0, 1)[None]


def _heads_of_sizes(x):
    """Heads differ in size, from 0.6 to 1.4."""
    return x * np.linspace(0.6, 1.4, x.shape[1])[:, None, None]


def _saw(x):
    """A saw of 19 tokens moves the size of all channels."""
    return x * (0.5 + (np.arange(x.shape[2]) % 19 / 19)[:, None])


def _copies(rng, x):
    """A third of the tokens are noisy copies of earlier ones."""
    keys = x.shape[2]
    of = np.where(rng.random(keys) < 1 / 3, rng.integers(0, keys, keys), np.arange(keys))
    return x[:, :, of] + 0.3 * rng.standard_normal(x.shape)


def _gathered(rng, q, k, v):
    """Queries of a head lie about one direction, which some keys share."""
    along = rng.standard_normal((1, k.shape[1], 1, k.shape[-1]))
    k = k + 0.5 * along * rng.binomial(1, 0.2, (*k.shape[:3], 1))
    return 0.7 * q + 0.4 * np.repeat(along, q.shape[1] // k.shape[1], 1), k, v


def _soft_signs(x):
    return 1.8 * x / (1 + abs(x))


FAMILIES: dict[str, Callable] = {
    "the logistic law": drawn(_logistic),
    "a triangle with a long side": drawn(_triangular),
    "Gumbel's law": drawn(_gumbel),
    "one channel in six is larger": changed(
        lambda rng, q, k, v: (q, _two_sizes_of_channels(rng, k), _two_sizes_of_channels(rng, v))
    ),
    "means of eight tokens": changed(
        lambda rng, q, k, v: (1.1 * q, _moving_mean(k), _moving_mean(v))
    ),
    "mostly near zero": changed(lambda rng, q, k, v: (1.2 * q, _sparse(rng, k), _sparse(rng, v))),
    "two speakers in turn": changed(
        lambda rng, q, k, v: (q, _turns_of_speakers(rng, k), _turns_of_speakers(rng, v))
    ),
    "heads from small to large": changed(
        lambda rng, q, k, v: (_heads_of_sizes(q), _heads_of_sizes(k), _heads_of_sizes(v))
    ),
    "a saw of 19 tokens": changed(lambda rng, q, k, v: (1.4 * q, _saw(k), _saw(v))),
    "copies of earlier tokens": changed(lambda rng, q, k, v: (q, _copies(rng, k), _copies(rng, v))),
    "queries about one direction": changed(_gathered),
    "soft signs": changed(lambda rng, q, k, v: tuple(_soft_signs(1.5 * x) for x in (q, k, v))),
    "queries twice as large": changed(lambda rng, q, k, v: (2 * q, k, 0.6 * v + 0.3)),
}
