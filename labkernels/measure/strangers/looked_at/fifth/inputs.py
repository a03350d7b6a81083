"""Families of the fifth set: what caches, prompts and untrained models have in them."""

from collections.abc import Callable

import numpy as np

from labkernels.measure.strangers.inputs import changed, drawn


def _turned_keys(rng, q, k, v):
    """Keys that turn with their place, as rotated ones of one direction do."""
    half = k.shape[-1] // 2
    angle = np.arange(k.shape[2])[:, None] * 1e4 ** (-np.arange(half) / half)
    size = 1 + 0.3 * rng.standard_normal(half)
    k[..., :half] = 0.4 * k[..., :half] + size * np.cos(angle)
    k[..., half:] = 0.4 * k[..., half:] + size * np.sin(angle)
    return q, k, v


def _retrieval(rng, q, k, v):
    """Each query looks for one key, which all heads know."""
    n = k.shape[2]
    place = rng.integers(n, size=q.shape[2])
    group = q.shape[1] // k.shape[1]
    return 0.5 * q + 0.8 * np.repeat(k, group, 1)[:, :, place], k, v


def _delimiters(rng, q, k, v):
    """Every ninth key is a delimiter with one direction, large scores and small values."""
    some = slice(None, None, 9)
    way = rng.standard_normal(k.shape[-1])
    k[:, :, some] = 0.5 * k[:, :, some] + 0.5 * way
    v[:, :, some] *= 0.1
    return q + 0.3 * way, k, v


def _untrained(rng, q, k, v):
    """Small uniform weights, as before the first step of training."""
    return 0.2 * q, 0.2 * k, 0.05 * v


def _two_speakers(rng, q, k, v):
    """Turns of two speakers with means of their own."""
    of = (np.arange(k.shape[2]) // 11 % 2)[:, None]
    a, b = rng.standard_normal((2, k.shape[-1]))
    return q, k + np.where(of, a, b), v + 0.5 * np.where(of, 1.0, -1.0)


def _half_dead(rng, q, k, v):
    """Half of the channels of V hardly move."""
    dead = rng.random(v.shape[-1]) < 0.5
    return q, k, np.where(dead, 0.01 * v + 0.3, v)


FAMILIES: dict[str, Callable] = {
    "turned keys": changed(_turned_keys),
    "retrieval": changed(_retrieval),
    "delimiters": changed(_delimiters),
    "before training": changed(_untrained),
    "two speakers": changed(_two_speakers),
    "half of V dead": changed(_half_dead),
    "logistic": drawn(lambda rng, shape: 0.55 * rng.logistic(size=shape)),
    "skewed": drawn(lambda rng, shape: rng.gamma(2.0, 0.7, shape) - 1.4),
    "in steps of 1 / 16": drawn(lambda rng, shape: np.rint(16 * rng.standard_normal(shape)) / 16),
    "values of one sign by head": changed(
        lambda rng, q, k, v: (q, k, abs(v) * rng.choice([-1.0, 1.0], v.shape[1])[:, None, None])
    ),
}
