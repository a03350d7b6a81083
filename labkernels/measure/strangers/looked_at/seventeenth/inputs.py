"""Shapes and families of inputs of the seventeenth set."""

from collections.abc import Callable

import numpy as np

from labkernels.measure.strangers.inputs import Shape, changed, drawn

SHAPES = (
    Shape(2, 8, 2, 1, 373, 64),  # a decode step, four heads per group
    Shape(2, 6, 2, 5, 233, 64, causal=True),  # five drafted tokens
    Shape(2, 4, 2, 37, 163, 128, causal=True),  # a chunk of a prefill
    Shape(3, 6, 2, 1, 277, 80),  # a decode step of three requests
    Shape(2, 9, 3, 3, 173, 96, causal=True),  # three drafted tokens, three KV heads
    Shape(2, 6, 3, 51, 51, 64, causal=True),  # a prompt
    Shape(2, 10, 2, 24, 131, 112),  # cross attention, five heads per group
    Shape(2, 4, 2, 34, 119, 96, causal=True, v_dim=128),  # a chunk, V wider than K
    Shape(4, 6, 2, 10, 157, 48, causal=True),  # a short chunk of four requests
)


def _weibull(rng, shape):
    """Weibull's law of shape 0.8 with a sign."""
    return rng.choice([-1.0, 1.0], shape) * np.minimum(rng.weibull(0.8, shape), 6)


def _arcsine(rng, shape):
    """The arcsine law: most numbers lie near the two ends."""
    return 1.4 * np.sin(rng.uniform(-np.pi, np.pi, shape))


def _stutter(x):
    """Each five keys in a row are alike but for a little noise."""
    first = np.arange(x.shape[2]) // 5 * 5
    return x[:, :, first] + 0.35 * x


def _seasons(rng, x):
    """Each channel has a wave of 23 keys with a phase of its own."""
    phase = rng.uniform(0, 2 * np.pi, (1, x.shape[1], 1, x.shape[-1]))
    at = np.arange(x.shape[2])[:, None]
    return 0.9 * np.sin(2 * np.pi * at / 23 + phase) + 0.6 * x


def _pink(x):
    """Noise along the keys whose power falls with the frequency."""
    keys = x.shape[2]
    wave = np.fft.rfft(x, axis=2)
    by = 1 / np.sqrt(np.maximum(np.arange(wave.shape[2]), 1.0))
    out = np.fft.irfft(wave * by[:, None], n=keys, axis=2)
    return out / out.std()


def _near_own_key(rng, q, k, v):
    """A query resembles the key of its own place."""
    group = q.shape[1] // k.shape[1]
    own = np.repeat(k, group, 1)[:, :, -q.shape[2] :]
    return 0.8 * own + 0.7 * q, k, v


def _low_rank(rng, x):
    """Keys of a head lie near a space of six dimensions."""
    basis = rng.standard_normal((x.shape[1], 6, x.shape[-1])) / 6**0.5
    return rng.standard_normal((*x.shape[:3], 6)) @ basis + 0.25 * x


def _sizes_of_tokens(rng, x):
    """Tokens differ in size by a log-normal factor."""
    return x * np.exp(0.6 * rng.standard_normal((*x.shape[:3], 1)))


def _crowds(rng, x):
    """Tokens belong to one of five crowds, and half of them to the first."""
    middle = 1.1 * rng.standard_normal((5, x.shape[-1]))
    return middle[rng.choice(5, x.shape[:3], p=[0.5, 0.2, 0.15, 0.1, 0.05])] + 0.7 * x


def _with_gains(rng, x):
    """Tokens of length 1 for each channel, times a gain for each channel."""
    unit = x / np.sqrt((x**2).mean(-1, keepdims=True))
    return unit * rng.gamma(2.0, 0.5, x.shape[-1])


def _fading(x):
    """Tokens grow from a third of their size to the whole from the first to the last."""
    return x * np.linspace(0.35, 1.0, x.shape[2])[:, None]


def _image(x):
    """Tokens are patches of an image 12 wide, each a mean with its left and upper neighbours."""
    left, upper = np.roll(x, 1, 2), np.roll(x, 12, 2)
    return (x + left + upper) / 1.6


def _steps_of_an_eighth(x):
    return np.rint(8 * np.clip(x, -2.5, 2.5)) / 8


def _two_tongues(rng, x):
    """Every head has one direction along which half of its tokens lie at each end."""
    along = rng.standard_normal((1, x.shape[1], 1, x.shape[-1]))
    return rng.choice([-0.8, 0.8], (*x.shape[:3], 1)) * along + 0.8 * x


FAMILIES: dict[str, Callable] = {
    "the arcsine law": drawn(_arcsine),
    "Weibull's law of both signs": drawn(_weibull),
    "five keys in a row alike": changed(lambda rng, q, k, v: (1.2 * q, _stutter(k), _stutter(v))),
    "seasons of 23 keys": changed(lambda rng, q, k, v: (q, _seasons(rng, k), _seasons(rng, v))),
    "pink noise along keys": changed(lambda rng, q, k, v: (1.3 * q, _pink(k), _pink(v))),
    "queries near their own key": changed(_near_own_key),
    "keys near six dimensions": changed(lambda rng, q, k, v: (q, _low_rank(rng, k), v)),
    "log-normal sizes of tokens": changed(
        lambda rng, q, k, v: (q, _sizes_of_tokens(rng, k), _sizes_of_tokens(rng, v))
    ),
    "five crowds of unequal size": changed(
        lambda rng, q, k, v: (0.8 * q, _crowds(rng, k), _crowds(rng, v))
    ),
    "normed tokens with gains": changed(
        lambda rng, q, k, v: (q, _with_gains(rng, k), _with_gains(rng, v))
    ),
    "tokens that grow along the keys": changed(
        lambda rng, q, k, v: (1.5 * q, _fading(k), _fading(v))
    ),
    "patches of an image": changed(lambda rng, q, k, v: (q, _image(k), _image(v))),
    "steps of an eighth": drawn(lambda rng, shape: _steps_of_an_eighth(rng.standard_normal(shape))),
    "two ends of a direction": changed(
        lambda rng, q, k, v: (q, _two_tongues(rng, k), _two_tongues(rng, v))
    ),
}
