"""Shapes and families of inputs of the fourteenth set."""

from collections.abc import Callable

import numpy as np

from labkernels.measure.strangers.inputs import Shape, changed, drawn

SHAPES = (
    Shape(2, 12, 4, 1, 373, 80),  # a decode step, three heads a group
    Shape(2, 6, 2, 1, 593, 64),  # a long decode step
    Shape(3, 4, 2, 8, 259, 112, causal=True),  # eight drafted tokens
    Shape(2, 15, 3, 5, 163, 64, causal=True),  # five drafted tokens, five heads a group
    Shape(2, 4, 2, 36, 175, 128, causal=True),  # a chunk of a prefill
    Shape(2, 6, 3, 57, 57, 96, causal=True),  # a prompt
    Shape(2, 8, 4, 27, 148, 144),  # cross attention of wide heads
    Shape(2, 6, 2, 51, 118, 64, causal=True, v_dim=80),  # a long chunk, V wider than K
    Shape(4, 4, 2, 14, 207, 72, causal=True),  # a short chunk of four requests
)


def _asymmetric(rng, shape):
    """Exponential laws of another size on either side of 0."""
    size = rng.exponential(1.0, shape)
    return np.where(rng.random(shape) < 0.6, -0.55 * size, 0.9 * size)


def _stable(rng, shape, alpha: float = 1.7):
    """A symmetric stable law by the method of Chambers, Mallows and Stuck, clipped."""
    u, e = rng.uniform(-np.pi / 2, np.pi / 2, shape), rng.exponential(1.0, shape)
    x = np.sin(alpha * u) / np.cos(u) ** (1 / alpha)
    return np.clip(0.6 * x * (np.cos((1 - alpha) * u) / e) ** ((1 - alpha) / alpha), -12, 12)


def _jumps(rng, shape):
    """Sums of a random number of normal jumps, and a little noise."""
    n = rng.poisson(1.5, shape)
    return np.sqrt(n) * rng.standard_normal(shape) * 0.8 + 0.05 * rng.standard_normal(shape)


def _pink(rng, x):
    """Noise along the tokens whose power falls as the frequency rises."""
    n = x.shape[2]
    spectrum = np.fft.rfft(x, axis=2)
    size = 1 / np.sqrt(np.maximum(np.arange(spectrum.shape[2]), 1))
    out = np.fft.irfft(spectrum * size[:, None], n, axis=2)
    return out / out.std() + 0.1 * rng.standard_normal(x.shape)


def _spins(rng, shape):
    """Signs that mostly agree with the channel before, with sizes of their own."""
    turn = np.where(rng.random(shape) < 0.25, -1.0, 1.0)
    return np.cumprod(turn, -1) * (0.7 + 0.2 * rng.random(shape))


def _six_bits(x):
    """A cache in e2m3: six bits, and a power of two as the scale of each 8 numbers."""
    part = x.reshape(*x.shape[:-1], -1, 8)
    scale = np.exp2(np.floor(np.log2(abs(part).max(-1, keepdims=True))) - 2)
    y = part / scale
    step = np.exp2(np.clip(np.floor(np.log2(np.maximum(abs(y), 1e-9))), 0, 2) - 3)
    return (np.clip(np.rint(y / step) * step, -7.5, 7.5) * scale).reshape(x.shape)


def _experts(rng, q, k, v):
    """The values of a token come from one of four experts, by the largest of four scores."""
    gate = k @ rng.standard_normal((k.shape[-1], 4))
    out = rng.standard_normal((4, v.shape[-1], v.shape[-1])) / v.shape[-1] ** 0.5
    sizes = np.array([0.5, 1.0, 1.5, 2.5])
    return q, k, np.einsum("bhnd,bhnde->bhne", v, (sizes[:, None, None] * out)[gate.argmax(-1)])


def _registers(rng, q, k, v):
    """The first half holds every tenth place for a register: a large key with small values."""
    at = slice(4, k.shape[2] // 2, 10)
    k[:, :, at] = 0.8 * k[:, :, at] + 0.5 * q.mean((1, 2))[:, None, None]
    v[:, :, at] *= 0.2
    return 1.3 * q, k, v


def _shifts(rng, x):
    """Each token is one vector, turned around by a number of channels, and noise."""
    base = rng.standard_normal(x.shape[-1])
    by = rng.integers(x.shape[-1], size=(*x.shape[:3], 1))
    return 0.8 * base[(np.arange(x.shape[-1]) + by) % x.shape[-1]] + 0.5 * x


def _plane(rng, q, k, v):
    """Tokens are waves over a plane, at places that walk through it."""
    waves = rng.standard_normal((2, q.shape[-1]))

    def tokens(n: int, heads: int):
        place = np.cumsum(0.3 * rng.standard_normal((q.shape[0], heads, n, 2)), 2)
        phase = np.arange(q.shape[-1]) * 2.4
        return 1.3 * np.cos(place @ waves + phase)

    return tokens(q.shape[2], q.shape[1]), tokens(k.shape[2], k.shape[1]), v


FAMILIES: dict[str, Callable] = {
    "asymmetric Laplace": drawn(_asymmetric),
    "a stable law, clipped": drawn(_stable),
    "Rayleigh less its mean": drawn(lambda rng, shape: 1.3 * rng.rayleigh(1.0, shape) - 1.63),
    "logit-normal about 0": drawn(
        lambda rng, shape: 2.6 / (1 + np.exp(-1.8 * rng.standard_normal(shape))) - 1.3
    ),
    "products of two normals": drawn(
        lambda rng, shape: rng.standard_normal(shape) * rng.standard_normal(shape)
    ),
    "sums of jumps": drawn(_jumps),
    "pink noise along the tokens": changed(lambda rng, q, k, v: (q, _pink(rng, k), _pink(rng, v))),
    "spins with neighbours": drawn(_spins),
    "six bits, a power of two for each 8": changed(
        lambda rng, q, k, v: (q, _six_bits(k), _six_bits(v))
    ),
    "values of four experts": changed(_experts),
    "registers among the tokens": changed(_registers),
    "one vector turned around": changed(lambda rng, q, k, v: (q, _shifts(rng, k), _shifts(rng, v))),
    "waves over a plane": changed(_plane),
}
