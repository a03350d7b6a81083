"""Families of inputs of the third set: tokens like their neighbours, offsets, large channels."""

from collections.abc import Callable

import numpy as np

from labkernels.measure.strangers.inputs import changed, drawn


def _neighbours(rng, x, share: float):
    """Each key a mixture of the one before and something new, as consecutive tokens are."""
    x = x.copy()
    for j in range(1, x.shape[2]):
        x[:, :, j] = share * x[:, :, j - 1] + (1 - share**2) ** 0.5 * x[:, :, j]
    return x


def _large_channels(rng, q, k, v):
    for x in (q, k):
        x[..., rng.integers(x.shape[-1], size=2)] *= 5
    return q, k, v


def _prompt_twice(rng, q, k, v):
    half = k.shape[2] // 2
    k[:, :, half : 2 * half], v[:, :, half : 2 * half] = k[:, :, :half], v[:, :, :half]
    return q, k, v


def _by_head(x, factors):
    return x * np.asarray(factors)[: x.shape[1], None, None]


def _mixture(rng, shape):
    return rng.standard_normal(shape) + 3 * rng.choice([-1.0, 0.0, 1.0], shape)


def _local(rng, q, k, v):
    place = np.linspace(0, 1, k.shape[2])
    waves = np.stack([np.cos(9 * place), np.sin(9 * place)], -1)
    k[..., :2], q[..., :2] = 3 * waves, 4 * waves[-q.shape[2] :]
    return q, k, v


FAMILIES: dict[str, Callable] = {
    "laplace": drawn(lambda rng, shape: rng.laplace(size=shape)),
    "mixture": drawn(_mixture),
    "keys like their neighbours": changed(lambda rng, q, k, v: (q, _neighbours(rng, k, 0.9), v)),
    "values like their neighbours": changed(lambda rng, q, k, v: (q, k, _neighbours(rng, v, 0.95))),
    "k with offsets by channel": changed(
        lambda rng, q, k, v: (q, k + 2 * rng.standard_normal(k.shape[-1]), v)
    ),
    "v with offsets by channel": changed(
        lambda rng, q, k, v: (q, k, v + 2 * rng.standard_normal(v.shape[-1]))
    ),
    "large channels": changed(_large_channels),
    "prompt twice": changed(_prompt_twice),
    "heads of different heat": changed(
        lambda rng, q, k, v: (_by_head(q, 0.3 * 1.6 ** np.arange(q.shape[1])), k, v)
    ),
    "local": changed(_local),
    "gamma v": changed(lambda rng, q, k, v: (q, k, rng.gamma(0.5, size=v.shape))),
    "uniform v, three decimals": changed(
        lambda rng, q, k, v: (q, k, np.round(rng.random(v.shape), 3))
    ),
    "triangular": drawn(lambda rng, shape: rng.triangular(-2, 0, 2, shape)),
    "v mostly one value": changed(
        lambda rng, q, k, v: (q, k, np.where(rng.random(v.shape) < 0.8, 0.25, v))
    ),
}
