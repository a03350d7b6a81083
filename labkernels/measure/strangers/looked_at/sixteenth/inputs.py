"""Shapes and families of inputs of the sixteenth set."""

from collections.abc import Callable

import numpy as np
import torch

from labkernels.measure.strangers.inputs import Shape, changed, drawn

SHAPES = (
    Shape(2, 8, 2, 1, 389, 64),  # a decode step, four heads a group
    Shape(2, 6, 2, 5, 241, 64, causal=True),  # five drafted tokens
    Shape(2, 4, 2, 38, 167, 128, causal=True),  # a chunk of a prefill
    Shape(3, 6, 2, 1, 283, 80),  # a decode step of three requests
    Shape(2, 9, 3, 3, 179, 96, causal=True),  # three drafted tokens, three KV heads
    Shape(2, 6, 3, 53, 53, 64, causal=True),  # a prompt
    Shape(2, 10, 2, 25, 133, 112),  # cross attention, five heads a group
    Shape(2, 4, 2, 35, 121, 96, causal=True, v_dim=128),  # a chunk, V wider than K
    Shape(4, 6, 2, 11, 159, 48, causal=True),  # a short chunk of four requests
)


def _moyal(rng, shape):
    """Moyal's law, which is skewed with one long tail."""
    return 0.5 * (-np.log(rng.standard_normal(shape) ** 2 + 1e-9) - 1.27)


def _log_uniform(rng, shape):
    return rng.choice([-1.0, 1.0], shape) * 2 ** rng.uniform(-4, 1.2, shape)


def _calm_and_wild(x):
    """The size of a token's numbers follows that of the token before."""
    out, size = np.empty(x.shape), np.ones((*x.shape[:2], x.shape[-1]))
    for j in range(x.shape[2]):
        out[:, :, j] = np.sqrt(size) * x[:, :, j]
        size = 0.1 + 0.3 * np.minimum(out[:, :, j] ** 2, 9) + 0.6 * size
    return out


def _two_bits(x, axis: int, size: int):
    """Numbers in two bits, with a scale and an offset for each `size` of them along an axis."""
    x = np.moveaxis(x, axis, -1)
    out = np.empty(x.shape)
    for first in range(0, x.shape[-1], size):
        part = x[..., first : first + size]
        low, high = part.min(-1, keepdims=True), part.max(-1, keepdims=True)
        step = np.maximum(high - low, 1e-3) / 3
        out[..., first : first + size] = np.rint((part - low) / step) * step + low
    return np.moveaxis(out, -1, axis)


def _shared_part(k):
    """The last quarter of the channels is the same for all heads."""
    k = k.copy()
    k[..., -(k.shape[-1] // 4) :] = 1.3 * k[:, :1, :, -(k.shape[-1] // 4) :]
    return k


def _mirrored(rng, x):
    """Each head mirrors the first one at a plane of its own."""
    normal = rng.standard_normal((x.shape[1], 1, x.shape[-1]))
    normal /= np.linalg.norm(normal, axis=-1, keepdims=True)
    first = x[:, :1] + 0.2 * x
    return first - 2 * (first * normal).sum(-1, keepdims=True) * normal


def _anchors(rng, x):
    """Tokens lie between three anchors."""
    anchors = 1.6 * rng.standard_normal((3, x.shape[-1]))
    return rng.dirichlet([0.7, 0.7, 0.7], x.shape[:3]) @ anchors + 0.3 * x


def _helix(rng, x):
    """Tokens go round a circle and along a line."""
    one, other, line = np.linalg.qr(rng.standard_normal((x.shape[-1], 3)))[0].T
    at = np.arange(x.shape[2])[:, None]
    path = np.cos(0.31 * at) * one + np.sin(0.31 * at) * other + (at / x.shape[2] - 0.5) * line
    return 0.45 * x.shape[-1] ** 0.5 * path + 0.7 * x


def _checkerboard(rng, shape):
    """Whole numbers whose sum over a token is even."""
    whole = np.rint(1.3 * rng.standard_normal(shape))
    odd = whole.sum(-1) % 2
    whole[..., 0] += np.where(odd, np.where(whole[..., 0] > 0, -1, 1), 0)
    return 0.75 * whole


def _prices(rng, x):
    """Each channel of a head grows and falls by a few per cent from token to token."""
    walk = np.exp(0.06 * np.cumsum(x, 2))
    return rng.choice([-1.0, 1.0], (1, x.shape[1], 1, x.shape[-1])) * np.minimum(walk, 6)


def _e5m2(x):
    return torch.from_numpy(x).float().to(torch.float8_e5m2).double().numpy()


def _between_two_keys(rng, q, k, v):
    """A query is half the sum of two keys of its head, with noise."""
    group = q.shape[1] // k.shape[1]
    keys = np.repeat(k, group, 1)
    for _ in range(2):
        at = rng.integers(k.shape[2], size=(*q.shape[:3], 1))
        q = q + 0.9 * np.take_along_axis(keys, at, 2)
    return 0.8 * q, k, v


def _less_the_one_before(x):
    return np.concatenate([x[:, :, :1], np.diff(x, axis=2)], 2) / 1.3


FAMILIES: dict[str, Callable] = {
    "Moyal's law": drawn(_moyal),
    "log-uniform of both signs": drawn(_log_uniform),
    "calm and wild stretches": changed(
        lambda rng, q, k, v: (q, _calm_and_wild(k), _calm_and_wild(v))
    ),
    "two bits, K by channels, V by tokens": changed(
        lambda rng, q, k, v: (1.2 * q, _two_bits(k, 2, 32), _two_bits(v, 3, 16))
    ),
    "a part of K shared by heads": changed(lambda rng, q, k, v: (1.3 * q, _shared_part(k), v)),
    "values after softplus": changed(lambda rng, q, k, v: (q, k, np.log1p(np.exp(2 * v)) - 0.7)),
    "tokens less the one before": changed(
        lambda rng, q, k, v: (q, _less_the_one_before(k), _less_the_one_before(v))
    ),
    "heads mirrored from one": changed(
        lambda rng, q, k, v: (q, _mirrored(rng, k), _mirrored(rng, v))
    ),
    "between three anchors": changed(lambda rng, q, k, v: (q, _anchors(rng, k), _anchors(rng, v))),
    "a helix": changed(lambda rng, q, k, v: (q, _helix(rng, k), _helix(rng, v))),
    "a checkerboard of whole numbers": drawn(_checkerboard),
    "prices": changed(lambda rng, q, k, v: (q, _prices(rng, k), _prices(rng, v))),
    "K and V on the grid of e5m2": changed(lambda rng, q, k, v: (q, _e5m2(k), _e5m2(v))),
    "queries between two keys": changed(_between_two_keys),
}
