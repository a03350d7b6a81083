"""Shapes and families of inputs of the twelfth set."""

from collections.abc import Callable

import numpy as np

from labkernels.measure.strangers.inputs import Shape, changed, drawn

SHAPES = (
    Shape(2, 6, 3, 1, 331, 64),  # a decode step, three KV heads
    Shape(1, 12, 2, 4, 613, 128, causal=True),  # four drafted tokens, six heads a group
    Shape(1, 4, 2, 67, 67, 80, causal=True),  # a prompt
    Shape(2, 5, 1, 7, 203, 64, causal=True),  # seven drafted tokens, one KV head
    Shape(2, 4, 4, 40, 171, 96),  # cross attention
    Shape(2, 8, 4, 29, 158, 112, causal=True, v_dim=64),  # a chunk, with narrow values
    Shape(3, 2, 1, 18, 94, 192, causal=True),  # a short chunk of a wide head
    Shape(4, 9, 3, 1, 219, 48),  # a batch of four decodes, nine heads
)


def _clipped_cauchy(rng, shape):
    """Cauchy numbers are clipped: one in ten lies on a bound."""
    return np.clip(0.6 * rng.standard_cauchy(shape), -4, 4)


def _rotated_outliers(rng, q, k, v):
    """A rotation spreads three large channels of q and k over all, as quantisers do."""
    turn = np.linalg.qr(rng.standard_normal((q.shape[-1], q.shape[-1])))[0]
    large = np.ones(q.shape[-1])
    large[rng.choice(q.shape[-1], 3, replace=False)] = 3.0
    return q * large @ turn, k * large @ turn, v


def _chain(rng, x, words: int = 30):
    """A Markov chain stays with a word or goes on to another; noise is added."""
    book = rng.standard_normal((words, x.shape[3]))
    steps = rng.choice([0, 1, 1, 1, 5], x.shape[:3])
    return book[np.cumsum(steps, 2) % words] + 0.2 * x


def _chirps(rng, x):
    """Sines rise in frequency along the sequence; each channel has a phase of its own."""
    at = np.arange(x.shape[2])[:, None]
    phase = rng.uniform(0, 2 * np.pi, x.shape[3])
    return 1.1 * np.sin(0.02 * at + 0.0011 * at**2 + phase) + 0.4 * x


def _mu_law(rng, shape):
    """Sound has 8 bits, whose steps grow with the number, as the mu law has them."""
    code = np.rint(127 * np.clip(0.45 * rng.standard_normal(shape), -1, 1)) / 127
    return 4 * np.sign(code) * (256 ** abs(code) - 1) / 255 + 0.003


def _season(rng, x):
    """A pattern of seven tokens repeats under noise that follows itself."""
    out = x.copy()
    for j in range(1, x.shape[2]):
        out[:, :, j] = 0.6 * out[:, :, j - 1] + 0.8 * x[:, :, j]
    return 0.8 * out + 0.6 * rng.standard_normal((7, x.shape[3]))[np.arange(x.shape[2]) % 7]


def _dirichlet(rng, shape):
    """Positive shares sum to the same for each token; most are small."""
    return 0.45 * shape[-1] * rng.dirichlet(np.full(shape[-1], 0.5), shape[:-1])


def _shared_exponents(rng, shape):
    """Blocks of 16 channels share one power of two; each number has three bits."""
    size = np.exp2(rng.integers(-2, 2, (*shape[:-1], shape[-1] // 16))).repeat(16, -1)
    return size * (2 * rng.integers(-4, 4, shape) + 1) / 8


def _ladders(rng, shape):
    """Each token has the same numbers, in an order of its own."""
    return rng.permuted(np.broadcast_to(np.linspace(-1.8, 1.8, shape[-1]), shape), axis=-1)


def _two_of_four(rng, shape):
    """Of each four channels the two smaller ones are 0."""
    x = rng.standard_normal((*shape[:-1], shape[-1] // 4, 4))
    rank = abs(x).argsort(-1).argsort(-1)
    return np.where(rank >= 2, 1.1 * x, 0).reshape(shape)


def _codebooks(rng, x):
    """Each token is a word of one book plus a smaller word of another."""
    books = rng.standard_normal((2, 20, x.shape[3])) * np.array([1, 0.4])[:, None, None]
    first, second = rng.integers(20, size=(2, *x.shape[:3]))
    return books[0][first] + books[1][second]


def _louder(x):
    return x * np.linspace(0.6, 1.7, x.shape[2])[:, None]


FAMILIES: dict[str, Callable] = {
    "Cauchy, clipped": drawn(_clipped_cauchy),
    "von Mises": drawn(lambda rng, shape: rng.vonmises(0.3, 1.2, shape)),
    "outliers, rotated": changed(_rotated_outliers),
    "a chain of words": changed(lambda rng, q, k, v: (q, _chain(rng, k), _chain(rng, v))),
    "chirps": changed(lambda rng, q, k, v: (q, _chirps(rng, k), _chirps(rng, v))),
    "negative binomial": drawn(
        lambda rng, shape: 0.45 * (rng.negative_binomial(3, 0.5, shape) - 2.5)
    ),
    "sound in 8 bits": drawn(_mu_law),
    "a season of seven tokens": changed(lambda rng, q, k, v: (q, _season(rng, k), _season(rng, v))),
    "Dirichlet": drawn(_dirichlet),
    "blocks with a shared exponent": drawn(_shared_exponents),
    "orders of one ladder": drawn(_ladders),
    "two of four channels": drawn(_two_of_four),
    "two codebooks": changed(
        lambda rng, q, k, v: (1.2 * q, _codebooks(rng, k), _codebooks(rng, v))
    ),
    "louder towards the end": changed(lambda rng, q, k, v: (1.1 * q, k, _louder(v))),
}
