"""Families and shapes of inputs of the eighth set: layers, caches and tests of other projects."""

from collections.abc import Callable

import numpy as np

from labkernels.measure.strangers.inputs import Shape, changed, drawn

SHAPES = (
    Shape(2, 6, 3, 1, 333, 80),
    Shape(1, 12, 2, 1, 513, 128),
    Shape(3, 5, 1, 7, 150, 48),
    Shape(2, 4, 4, 40, 104, 64, causal=True),
    Shape(1, 6, 6, 70, 70, 96, causal=True),
    Shape(4, 2, 2, 20, 190, 32),
)


def _gated(rng, q, k, v):
    """Values behind a gate, most of them near 0."""
    return q, k, v / (1 + np.exp(-3 * rng.standard_normal(v.shape)))


def _low_rank(rng, q, k, v):
    """Keys and queries that live in eight directions, with a little else."""
    ways = rng.standard_normal((8, k.shape[-1]))
    made = [0.35 * rng.standard_normal((*x.shape[:-1], 8)) @ ways + 0.2 * x for x in (q, k)]
    return *made, v


def _recent(rng, q, k, v):
    """Scores that rise towards the newest keys."""
    way = rng.standard_normal(k.shape[-1])
    way /= np.sqrt((way**2).mean())
    rise = np.linspace(-1, 1, k.shape[2])[:, None]
    return q + 0.3 * way, k + 0.5 * rise * way, v


def _unit_norm(rng, q, k, v):
    """Queries and keys with a norm of their own, as layers with QK norm have them."""
    return *(1.3 * x / np.sqrt((x**2).mean(-1, keepdims=True)) for x in (q, k)), v


def _channels_of_sizes(rng, q, k, v):
    sizes = [np.exp(0.6 * rng.standard_normal(x.shape[-1])) for x in (k, v)]
    return q, k * sizes[0], v * sizes[1]


def _common_key(rng, q, k, v):
    """Keys and values about a mean of each channel."""
    return q, k + 1.5 * rng.standard_normal(k.shape[-1]), v + rng.standard_normal(v.shape[-1])


def _smooth(rng, q, k, v):
    """Keys and values that change slowly from key to key, as frames of a video do."""
    near = [sum(np.roll(x, i, 2) for i in range(4)) / 2 for x in (k, v)]
    return q, *near


FAMILIES: dict[str, Callable] = {
    "gated values": changed(_gated),
    "eight directions": changed(_low_rank),
    "recent keys": changed(_recent),
    "unit norm": changed(_unit_norm),
    "channels of sizes": changed(_channels_of_sizes),
    "common key": changed(_common_key),
    "smooth": changed(_smooth),
    "Student's t": drawn(lambda rng, shape: 0.8 * rng.standard_t(5, shape)),
    "signed squares": changed(lambda rng, *xs: tuple(0.7 * x * abs(x) for x in xs)),
    "two humps": drawn(
        lambda rng, shape: rng.choice([-1.0, 1.0], shape) + 0.4 * rng.standard_normal(shape)
    ),
}
