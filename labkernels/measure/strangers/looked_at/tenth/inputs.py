"""Shapes and families of inputs of the tenth set."""

from collections.abc import Callable

import numpy as np

from labkernels.measure.strangers.inputs import Shape, changed, drawn

SHAPES = (
    Shape(3, 8, 2, 1, 271, 112),  # a decode step
    Shape(2, 7, 1, 11, 143, 56, causal=True),  # a draft, one KV head for all seven
    Shape(2, 6, 2, 45, 45, 72, causal=True),  # a short prompt
    Shape(2, 9, 3, 23, 119, 40),  # cross attention with shared KV heads
    Shape(2, 4, 2, 5, 391, 64, causal=True, v_dim=96),  # a long draft, V wider than K
    Shape(4, 6, 6, 1, 157, 120),  # a decode step of four requests
    Shape(2, 12, 4, 31, 97, 88, causal=True),  # a chunk of a prefill
)


def _ramp(count: int, first: float, last: float):
    return np.linspace(first, last, count)


def _question(rng, q, k, v):
    """Half of the channels of all queries agree, as at the end of a prompt."""
    common = rng.standard_normal((q.shape[0], 1, 1, q.shape[3]))
    half = q.shape[3] // 2
    q[..., :half] = 0.25 * q[..., :half] + common[..., :half]
    return q, k, v


def _turns(rng, x, length: int = 37):
    """Two speakers in turns, each with a voice in every fourth channel, at another volume."""
    voice = rng.standard_normal((2, x.shape[3])) * (np.arange(x.shape[3]) % 4 == 0)
    speaker = np.arange(x.shape[2]) // length % 2
    return (x + voice[speaker]) * np.where(speaker, 0.8, 1.15)[:, None]


def _bursts(rng, x):
    """Every fifth token or so has values three times as large."""
    loud = rng.random((x.shape[0], 1, x.shape[2], 1)) < 0.2
    return np.where(loud, 3 * x, 0.7 * x)


def _copied_heads(rng, x):
    """Heads that share most of their numbers."""
    return (2 * x[:, :1] + x) / 5**0.5


def _hadamard(x):
    """Channels mixed by a Walsh-Hadamard transform over the largest power of two that fits."""
    size = 2 ** (x.shape[-1].bit_length() - 1)
    mixed = x[..., :size].copy()
    step = 1
    while step < size:
        pairs = mixed.reshape(*x.shape[:-1], -1, 2, step)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        mixed = np.stack([a + b, a - b], -2).reshape(*x.shape[:-1], size) / 2**0.5
        step *= 2
    return np.concatenate([mixed, x[..., size:]], -1)


def _rotated(rng, q, k, v):
    """Large channels that a rotation spread over the head, as for 4-bit caches."""
    size = np.exp(0.7 * rng.standard_normal(k.shape[-1]))
    return _hadamard(q / size), _hadamard(k * size), v


def _normed(x, weight):
    return x / np.sqrt((x**2).mean(-1, keepdims=True)) * weight


def _gemma(rng, q, k, v):
    """Norms with weights by channel on q, k and v."""
    weights = [1 + 0.3 * rng.standard_normal(x.shape[-1]) for x in (q, k, v)]
    return tuple(_normed(x, weight) for x, weight in zip((q, k, v), weights, strict=True))


def _fading(rng, q, k, v):
    """Keys that matter less, and values that shrink, the older they are."""
    n = k.shape[2]
    return q, k * _ramp(n, 0.4, 1.4)[:, None], v * _ramp(n, 0.3, 1.2)[:, None]


def _four_bits(x):
    """A grid of 4 bits with an offset for groups of 8 channels of a token."""
    groups = x.reshape(*x.shape[:-1], -1, 8)
    low = groups.min(-1, keepdims=True)
    step = (groups.max(-1, keepdims=True) - low) / 15
    return (np.rint((groups - low) / step) * step + low).reshape(x.shape)


def _phases(rng, shape):
    """The cosines of random phases: bounded, and dense at both ends."""
    return 1.4 * np.cos(2 * np.pi * rng.random(shape))


def _dice(rng, shape):
    """The sum of three dice, centred: integers and halves."""
    return (rng.integers(1, 7, (3, *shape)).sum(0) - 10.5) / 3


def _gumbel(rng, shape):
    return 0.8 * (rng.gumbel(size=shape) - 0.5772)


def _logits(rng, shape):
    """The logarithm of odds of uniform numbers."""
    u = rng.uniform(0.002, 0.998, shape)
    return 0.55 * np.log(u / (1 - u)) + 0.1


def _gelu(x):
    return x * (0.5 + 0.5 * np.tanh(0.8 * x))


def _two_steps(x):
    """Fine numbers around a coarse grid."""
    return np.rint(2 * x) / 2 + 0.01 * x


def _patches(rng, x):
    """Pairs of neighbouring tokens that share three quarters of their energy."""
    pairs = np.repeat(x[:, :, ::2], 2, axis=2)[:, :, : x.shape[2]]
    return (1.7 * pairs + x) / 2.1


def _experts(rng, q, k, v):
    """Each KV head reads mostly its own quarter of the channels."""
    heads, dim = k.shape[1], k.shape[3]
    own = (np.arange(dim)[None] // max(1, dim // 4)) % 4 == (np.arange(heads) % 4)[:, None]
    return q, k * np.where(own, 1.6, 0.5)[:, None], v


FAMILIES: dict[str, Callable] = {
    "queries of one question": changed(_question),
    "two voices in turns": changed(lambda rng, q, k, v: (q, _turns(rng, k), _turns(rng, v))),
    "bursts in v": changed(lambda rng, q, k, v: (q, k, _bursts(rng, v))),
    "heads much alike": changed(
        lambda rng, q, k, v: (_copied_heads(rng, q), _copied_heads(rng, k), _copied_heads(rng, v))
    ),
    "rotated for a small cache": changed(_rotated),
    "norms with weights on q, k and v": changed(_gemma),
    "old keys fade": changed(_fading),
    "grid of 4 bits with offsets": changed(lambda rng, q, k, v: (q, _four_bits(k), _four_bits(v))),
    "cosines of phases": drawn(_phases),
    "sums of dice": drawn(_dice),
    "Gumbel": drawn(_gumbel),
    "log odds": drawn(_logits),
    "values after GELU": changed(lambda rng, q, k, v: (1.3 * q, k, _gelu(1.5 * v))),
    "coarse steps with fine noise": changed(
        lambda rng, q, k, v: (_two_steps(q), _two_steps(k), _two_steps(v))
    ),
    "tokens in pairs": changed(lambda rng, q, k, v: (q, _patches(rng, k), _patches(rng, v))),
    "heads with channels of their own": changed(_experts),
}
