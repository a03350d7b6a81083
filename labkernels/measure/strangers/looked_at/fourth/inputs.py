"""Families of inputs of the fourth set: tails, clusters, drifts, quantised caches, uneven heads."""

from collections.abc import Callable

import numpy as np

from labkernels.measure.strangers.inputs import changed, drawn


def _unit_norms(rng, q, k, v):
    """Return q and k with a root mean square of 1 per token, and q times a temperature."""
    q, k = (x / np.sqrt((x**2).mean(-1, keepdims=True)) for x in (q, k))
    return 1.5 * q, k, v


def _clusters(rng, q, k, v):
    """Keys lie near a few centres, as if tokens said the same."""
    centres = rng.standard_normal((6, k.shape[-1]))
    return q, centres[rng.integers(6, size=k.shape[:-1])] + 0.2 * k, v


def _massive(rng, q, k, v):
    """First tokens with one enormous channel, and small values: registers of a large model."""
    channel = int(rng.integers(k.shape[-1]))
    k[:, :, :4, channel] = 12
    q[..., channel] = abs(q[..., channel]) + 1
    v[:, :, :4] *= 0.02
    return q, k, v


def _drifting(rng, q, k, v):
    """A mean that wanders along the tokens."""
    steps = rng.standard_normal((*k.shape[:2], k.shape[2], 1)) / k.shape[2] ** 0.5
    return q, k + np.cumsum(steps, 2) * rng.standard_normal(k.shape[-1]), v


def _uneven_heads(rng, q, k, v):
    """Every second head sees all keys alike, the others hardly more than one key."""
    return q * np.where(np.arange(q.shape[1]) % 2, 3.0, 0.1)[:, None, None], k, v


def _low_rank(rng, q, k, v):
    return q, k, rng.standard_normal((*v.shape[:-1], 3)) @ rng.standard_normal((3, v.shape[-1]))


def _of_int8(x):
    step = np.abs(x).max(-1, keepdims=True) / 127
    return np.rint(x / step) * step


def _padded(rng, q, k, v):
    """The last quarter of the keys is one token, again and again."""
    rest = k.shape[2] - k.shape[2] // 4
    k[:, :, rest:], v[:, :, rest:] = k[:, :, rest - 1 : rest], v[:, :, rest - 1 : rest]
    return q, k, v


def _waves(rng, q, k, v):
    """Keys repeat like the rows of a picture."""
    place = np.arange(k.shape[2])[:, None] * 2 * np.pi / 14
    k[..., :8] = 1.5 * np.cos(place + rng.random(8) * 6) + 0.3 * k[..., :8]
    return q, k, v


FAMILIES: dict[str, Callable] = {
    "heavy tails": drawn(lambda rng, shape: np.clip(rng.standard_t(3, shape), -20, 20)),
    "unit norms": changed(_unit_norms),
    "clusters of keys": changed(_clusters),
    "massive first tokens": changed(_massive),
    "drifting keys": changed(_drifting),
    "uneven heads": changed(_uneven_heads),
    "values of low rank": changed(_low_rank),
    "a cache of int8": changed(lambda rng, q, k, v: (q, _of_int8(k), _of_int8(v))),
    "sparse values": changed(lambda rng, q, k, v: (q, k, v * (rng.random(v.shape) < 0.2))),
    "padded with one token": changed(_padded),
    "rows of a picture": changed(_waves),
    "values of sizes by channel": changed(
        lambda rng, q, k, v: (q, k, v * 8.0 ** rng.uniform(-2, 1, v.shape[-1]))
    ),
}
