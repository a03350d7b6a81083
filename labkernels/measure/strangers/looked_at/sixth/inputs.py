"""Families that were held out with two sets: sensors, documents, caches, other tests."""

from collections.abc import Callable

import numpy as np

from labkernels.measure.strangers.inputs import changed, drawn


def _walk(rng, q, k, v):
    """Values that walk at random from key to key, as states of a recurrence do."""
    return q, k, 0.2 * np.cumsum(v, 2)


def _documents(rng, q, k, v):
    """Keys of a few documents, each with a direction; queries that belong to the last."""
    n = k.shape[2]
    ways = rng.standard_normal((5, k.shape[-1]))
    of = np.sort(rng.integers(5, size=n))
    return 0.6 * q + 0.5 * ways[-1], 0.7 * k + 0.5 * ways[of], v


def _quantised_queries(rng, q, k, v):
    """Queries of 3 bits, keys of 5, values of 8."""
    return np.rint(2 * q) / 2, np.rint(8 * k) / 8, np.rint(32 * v) / 32


def _one_loud_head(rng, q, k, v):
    """One KV head with keys four times as large, and values a tenth as large."""
    head = int(rng.integers(k.shape[1]))
    k[:, head] *= 4.0
    v[:, head] *= 0.1
    return q, k, v


def _pauses(rng, q, k, v):
    """Runs of keys that are nearly silent between others."""
    silent = (np.arange(k.shape[2]) // 13 % 3 == 1)[:, None]
    return q, np.where(silent, 0.05 * k, k), np.where(silent, 0.05 * v, v)


def _near_twins(rng, q, k, v):
    """Each second key nearly equals the key before."""
    n = k.shape[2] // 2 * 2
    k[:, :, 1:n:2] = k[:, :, 0:n:2] + 0.02 * k[:, :, 1:n:2]
    return q, k, v


def _torch_rand(rng, shape):
    return rng.random(shape) - 0.5


FAMILIES: dict[str, Callable] = {
    "values that walk": changed(_walk),
    "documents": changed(_documents),
    "few bits in q and k": changed(_quantised_queries),
    "one loud head": changed(_one_loud_head),
    "pauses": changed(_pauses),
    "near twins": changed(_near_twins),
    "uniform about 0": drawn(_torch_rand),
    "cosine": drawn(lambda rng, shape: np.sqrt(2) * np.cos(2 * np.pi * rng.random(shape))),
    "mostly 0": drawn(lambda rng, shape: rng.standard_normal(shape) * (rng.random(shape) < 0.3)),
    "Weibull": drawn(lambda rng, shape: rng.weibull(1.5, shape) - 0.9),
}
