"""Shapes and families of inputs of the ninth set."""

from collections.abc import Callable

import numpy as np

from labkernels.measure.strangers.inputs import Shape, changed, drawn

SHAPES = (
    Shape(2, 6, 2, 19, 83, 48, causal=True),  # a chunk of a prefill
    Shape(3, 4, 2, 37, 37, 64, causal=True),  # a short prompt
    Shape(2, 6, 3, 1, 301, 64),  # a decode step
    Shape(1, 10, 2, 7, 211, 80, causal=True),  # a verified draft, five heads for a KV head
    Shape(2, 4, 4, 29, 101, 96),  # cross attention
    Shape(2, 8, 2, 3, 173, 40, causal=True, v_dim=24),  # a short draft, V narrower than K
    Shape(2, 5, 5, 65, 65, 16, causal=True),  # an odd number of heads, one row past a tile
)


def _last_places(k, queries: int):
    """The keys at the places of the queries."""
    return k[:, :, k.shape[2] - queries :]


def _for_queries(x, q):
    """KV heads repeated for the query heads that share them."""
    return np.repeat(x, q.shape[1] // x.shape[1], axis=1)


def _local(rng, q, k, v):
    """Each query looks like the key at its own place."""
    return 0.7 * q + _for_queries(_last_places(k, q.shape[2]), q), k, v


def _needle(rng, q, k, v):
    """Each query finds one key at a random place."""
    place = rng.integers(k.shape[2], size=q.shape[2])
    return 0.5 * q + 1.2 * _for_queries(k[:, :, place], q), k, v


def _walk(rng, x):
    """Tokens that resemble the tokens before them."""
    out = np.array(x)
    for j in range(1, x.shape[2]):
        out[:, :, j] = 0.9 * out[:, :, j - 1] + 0.436 * x[:, :, j]
    return out


def _documents(rng, x):
    """Stretches of 23 tokens about the same subject."""
    centre = rng.standard_normal((*x.shape[:2], -(-x.shape[2] // 23), x.shape[3]))
    return 0.6 * x + np.repeat(centre, 23, axis=2)[:, :, : x.shape[2]]


def _biased_keys(rng, q, k, v):
    """A large bias on the keys, as of a projection with a bias: the same for every key."""
    return q, k + 6 * (rng.random(k.shape[-1]) < 0.1), v


def _massive(rng, q, k, v):
    """Two channels far larger than the rest, and one token with a small key and a large value."""
    channel = rng.choice(k.shape[-1], 2, replace=False)
    k[..., channel] *= 5
    q[..., channel] *= 2
    k[:, :, 1] *= 0.2
    v[:, :, 1] *= 4
    return q, k, v


def _normed(rng, q, k, v):
    """Queries and keys of length 1, times a temperature, as with a norm on q and k."""
    size = 2.2 * q.shape[-1] ** 0.25
    q, k = (size * x / np.sqrt((x**2).sum(-1, keepdims=True)) for x in (q, k))
    return q, k, v


def _waves(rng, q, k, v):
    """Keys and queries that turn with their place at many speeds, and a little noise."""
    half = q.shape[-1] // 2
    speed = 500.0 ** (-np.arange(half) / half)

    def turned(x, first):
        angle = (np.arange(x.shape[2])[:, None] + first) * speed
        return np.concatenate([np.cos(angle), np.sin(angle)], -1) * 1.3 + 0.5 * x

    return turned(q, k.shape[2] - q.shape[2]), turned(k, 0), v


def _temperatures(rng, q, k, v):
    """Heads from nearly uniform to sharp."""
    return q * np.geomspace(0.3, 5, q.shape[1])[:, None, None], k, v


def _unlike_requests(rng, q, k, v):
    """Requests whose values and queries have different sizes and means."""
    step = np.arange(q.shape[0])[:, None, None, None]
    return q * (1 + step), k, v * 2.0**-step + step


def _low_rank(rng, q, k, v):
    """Keys and values in a few directions, with noise."""

    def thin(x):
        few = rng.standard_normal((*x.shape[:3], 4)) @ rng.standard_normal((4, x.shape[3]))
        return 0.5 * few + 0.2 * x

    return q, thin(k), thin(v)


def _of_different_length(rng, x):
    """Tokens of very different length."""
    return x * np.exp(0.8 * rng.standard_normal((*x.shape[:3], 1)))


def _eight_bits(x):
    """Numbers of a grid of 8 bits for each token, as from a quantised cache."""
    step = np.abs(x).max(-1, keepdims=True) / 127
    return np.rint(x / step) * step


def _sines(rng, shape):
    """The sines of the element's number, as in a test that wants no random numbers."""
    number = np.arange(np.prod(shape)).reshape(shape) + rng.integers(1000)
    return 1.2 * np.sin(0.37 * number) + 0.4 * np.cos(0.011 * number)


def _modular(rng, shape):
    """The element's number modulo a prime, as in a unit test."""
    number = np.arange(np.prod(shape)).reshape(shape) + rng.integers(1000)
    return (number % 31 - 15) / 8.0


FAMILIES: dict[str, Callable] = {
    "each query like its own key": changed(_local),
    "one key found by each query": changed(_needle),
    "tokens like the token before": changed(
        lambda rng, q, k, v: (_walk(rng, q), _walk(rng, k), _walk(rng, v))
    ),
    "documents of 23 tokens": changed(
        lambda rng, q, k, v: (_documents(rng, q), _documents(rng, k), _documents(rng, v))
    ),
    "keys with a bias": changed(_biased_keys),
    "massive channels and a massive token": changed(_massive),
    "norm on q and k": changed(_normed),
    "waves": changed(_waves),
    "heads of different temperature": changed(_temperatures),
    "requests of different size and mean": changed(_unlike_requests),
    "low rank with noise": changed(_low_rank),
    "tokens of different length": changed(
        lambda rng, q, k, v: (q, k, _of_different_length(rng, v))
    ),
    "grid of 8 bits": changed(lambda rng, q, k, v: (q, _eight_bits(k), _eight_bits(v))),
    "heavier tails": drawn(lambda rng, shape: rng.standard_t(4, shape) / 2**0.5),
    "rectified, mostly zero": changed(lambda rng, q, k, v: (q, k, np.maximum(v - 0.8, 0))),
    "sines of the number": drawn(_sines),
    "numbers modulo a prime": drawn(_modular),
}
