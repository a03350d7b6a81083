"""Shapes and families of inputs of the eleventh set."""

from collections.abc import Callable

import numpy as np

from labkernels.measure.strangers.inputs import Shape, changed, drawn

SHAPES = (
    Shape(2, 10, 5, 1, 239, 64),  # a decode step, pairs of heads for five KV heads
    Shape(1, 6, 2, 53, 53, 128, causal=True),  # a short prompt
    Shape(3, 4, 1, 9, 181, 96, causal=True),  # a draft of nine, one KV head
    Shape(2, 3, 3, 26, 137, 56),  # cross attention with an odd number of heads
    Shape(1, 16, 4, 1, 467, 80),  # a long decode step
    Shape(2, 4, 2, 21, 149, 64, causal=True, v_dim=32),  # V half as wide as K
    Shape(2, 10, 2, 34, 110, 48, causal=True),  # the last chunk of a prefill, five heads a group
)


def _salience(rng, q, k, v):
    """A tenth of the keys point where most queries look, and carry small values."""
    look = rng.standard_normal((q.shape[0], 1, 1, q.shape[3]))
    salient = rng.random((k.shape[0], k.shape[1], k.shape[2], 1)) < 0.1
    return q + 0.5 * look, np.where(salient, 0.6 * k + look, k), np.where(salient, 0.4 * v, v)


def _echo(rng, x, lag: int = 13):
    """Each token repeats half of the one 13 before."""
    out = x.copy()
    for j in range(lag, x.shape[2]):
        out[:, :, j] = 0.5 * out[:, :, j - lag] + 0.86 * x[:, :, j]
    return out


def _drawn_from(rng, x, count: int = 24):
    """Tokens of a vocabulary of 24, with a little noise."""
    words = rng.standard_normal((count, x.shape[3]))
    return words[rng.integers(count, size=x.shape[:3])] + 0.15 * x


def _quarters(rng, x):
    """Four parts of the sequence with means of their own, as of chapters."""
    part = np.arange(x.shape[2]) * 4 // x.shape[2]
    return 0.9 * x + rng.normal(0, 0.5, (4, x.shape[3]))[part]


def _layer_normed(x):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)


def _swish(x):
    return x / (1 + np.exp(-1.7 * x))


def _beta(rng, shape):
    """Numbers between -2 and 2 that lean to one side."""
    return 4 * rng.beta(2.0, 3.0, shape) - 1.6


def _pixels(rng, shape):
    """Bytes of an image, normalised as image models do."""
    return (rng.integers(0, 256, shape) / 255 - 0.45) / 0.27


def _exponential(rng, shape):
    """Exponential numbers with random signs: a peak at 0, and tails lighter than Laplace's."""
    return rng.choice([-1.0, 1.0], shape) * rng.exponential(0.8, shape) ** 0.8


def _mantissas(rng, shape):
    """Numbers of four bits between 1 and 2, with signs, at four powers of two."""
    sign = rng.choice([-1.0, 1.0], shape)
    return sign * (1 + rng.integers(0, 16, shape) / 16) * np.exp2(rng.integers(-3, 1, shape))


def _poisson(rng, shape):
    """Counts, less their mean, in units of 0.6."""
    return 0.6 * (rng.poisson(2.5, shape) - 2.5) + 0.01


def _temperature(rng, q, k, v):
    """Queries of temperatures between a half and two, each row its own."""
    return q * np.exp2(rng.uniform(-1, 1, (*q.shape[:3], 1))), k, v


def _latent(rng, q, k, v):
    """K and V of one latent vector of 24 numbers, as in models with a compressed cache."""
    latent = rng.standard_normal((k.shape[0], 1, k.shape[2], 24))
    up = [rng.standard_normal((x.shape[1], 24, x.shape[3])) / 24**0.5 for x in (k, v)]
    return q, latent @ up[0] + 0.05 * k, latent @ up[1] + 0.05 * v


FAMILIES: dict[str, Callable] = {
    "salient keys with small values": changed(_salience),
    "echoes of 13 tokens before": changed(lambda rng, q, k, v: (q, _echo(rng, k), _echo(rng, v))),
    "a vocabulary of 24 tokens": changed(
        lambda rng, q, k, v: (q, _drawn_from(rng, k), _drawn_from(rng, v))
    ),
    "chapters with means of their own": changed(
        lambda rng, q, k, v: (q, _quarters(rng, k), _quarters(rng, v))
    ),
    "layer norm on q and k": changed(
        lambda rng, q, k, v: (1.2 * _layer_normed(q + 1), _layer_normed(k - 1), v)
    ),
    "values after Swish, queries hot": changed(lambda rng, q, k, v: (1.6 * q, k, _swish(2 * v))),
    "beta": drawn(_beta),
    "pixels": drawn(_pixels),
    "exponential of both signs": drawn(_exponential),
    "mantissas of four bits": drawn(_mantissas),
    "Poisson counts": drawn(_poisson),
    "rows of different temperature": changed(_temperature),
    "one latent for K and V": changed(_latent),
    "tanh of everything": drawn(lambda rng, shape: 1.5 * np.tanh(rng.standard_normal(shape) + 0.2)),
}
