"""Families of inputs that were held out until they were looked at: heavy tails, grids."""

from collections.abc import Callable

import numpy as np
import torch

from labkernels.measure.strangers.inputs import changed, drawn


def _low_rank(rng, q, k, v):
    basis = rng.standard_normal((4, q.shape[-1]))
    return q[..., :4] @ basis, k[..., :4] @ basis / 2, v


def _clusters(rng, q, k, v):
    centre = rng.standard_normal(k.shape[-1])
    side = rng.choice([-1.0, 1.0], (*k.shape[:3], 1))
    return q, side * centre + 0.1 * k, v


def _needle(rng, q, k, v):
    group = q.shape[1] // k.shape[1]
    place = int(rng.integers(k.shape[2]))
    k[:, :, place] = 0.7 * q[:, ::group, 0]
    return q, k, v


def _recent(rng, q, k, v):
    direction = rng.standard_normal(q.shape[-1])
    ramp = np.linspace(-2, 0, k.shape[2])[:, None]
    return abs(q) * np.sign(direction), 0.3 * k + ramp * abs(direction) * np.sign(direction), v


def _on_grid(rng, *xs):
    return tuple(torch.from_numpy(x).to(torch.float8_e4m3fn).double().numpy() for x in xs)


def _half_far(rng, q, k, v):
    k[:, :, k.shape[2] // 2 :] = -3 * np.sign(q.mean((1, 2)))[:, None, None]
    return q, k, v


def _pairs_of_heads(rng, q, k, v):
    q[:, 1::2] = q[:, : q.shape[1] - 1 : 2]
    return q, k, v


def _few_channels(rng, q, k, v):
    q[..., 4:] = 0
    return 4 * q, k, v


FAMILIES: dict[str, Callable] = {
    "student t": drawn(lambda rng, shape: rng.standard_t(3, shape)),
    "sparse v": changed(lambda rng, q, k, v: (q, k, v * (rng.random(v.shape) < 0.1))),
    "low rank": changed(_low_rank),
    "two clusters of keys": changed(_clusters),
    "needle": changed(_needle),
    "recency": changed(_recent),
    "v sorted": changed(lambda rng, q, k, v: (q, k, np.sort(v, axis=2))),
    "channels of falling size": changed(
        lambda rng, q, k, v: (q, k, v * 2.0 ** -(np.arange(v.shape[-1]) / 4))
    ),
    "e4m3 grid": changed(_on_grid),
    "int8 grid": changed(lambda rng, *xs: tuple(np.rint(32 * x) / 32 for x in xs)),
    "first half of v zero": changed(
        lambda rng, q, k, v: (q, k, v * (np.arange(v.shape[2]) >= v.shape[2] // 2)[:, None])
    ),
    "sine v": changed(
        lambda rng, q, k, v: (q, k, np.sin(np.arange(v.shape[2]) / 7)[:, None] + 0 * v)
    ),
    "v squared": changed(lambda rng, q, k, v: (q, k, v**2)),
    "v of mean by head": changed(
        lambda rng, q, k, v: (q, k, v + 10 * np.arange(1, v.shape[1] + 1)[:, None, None])
    ),
    "large q, small k": changed(lambda rng, q, k, v: (100 * q, k / 100, v)),
    "few channels of q": changed(_few_channels),
    "pairs of heads": changed(_pairs_of_heads),
    "half of the keys far": changed(_half_far),
}
