"""Find the mistakes that a tolerance accepts, by trying drawn ones on a part of a test's inputs."""

import numpy as np

from labkernels.audit.tolerance import Tolerance
from labkernels.measure.mistakes import attention, drawn

DRAWN = 500
_MOST_SCORES = 2**17  # scores of all heads of a part; a mistake then takes some ten milliseconds


def shape_like(
    batch: int, q_heads: int, kv_heads: int, queries: int, keys: int, dim: int, *, causal: bool
) -> attention.Shape:
    """Return a part of a test: all keys, up to two requests, two KV heads and groups of two."""
    kv = min(2, kv_heads)
    group = min(2, q_heads // kv_heads)
    requests = min(2, batch)
    rows = max(1, _MOST_SCORES // (requests * kv * group * keys))
    return attention.Shape(requests, kv * group, kv, min(queries, rows), keys, dim, causal=causal)


def mistakes(
    tolerance: Tolerance,
    shape: attention.Shape,
    dtype: str,
    *,
    mean: float = 0.0,
    count: int = DRAWN,
    seed: int = 0,
) -> tuple[list[tuple[float, drawn.Mistake]], int]:
    """Return the drawn mistakes whose outputs are inside a tolerance, and how many changed any bit.

    Each comes with its error: its rms over that of the output. The largest error comes first.
    """
    call = attention.drawn_call(_normal(mean), [seed], shape, dtype)
    truth = attention.exact(call)[0].numpy()
    work = attention.Work.of(call)
    good = attention.right_output(work)
    passed, tried = [], 0
    for number in range(seed * count, (seed + 1) * count):
        mistake = drawn.mistake(number)
        out = mistake.output(work)
        if out.equal(good):
            continue
        tried += 1
        values = out.double().numpy()
        if tolerance.accepts(values, truth):
            error = np.sqrt(np.mean((values - truth) ** 2) / np.mean(truth**2))
            passed.append((float(error), mistake))
    return sorted(passed, key=lambda pair: -pair[0]), tried


def _normal(mean: float):
    def family(rng: np.random.Generator, shape: attention.Shape):
        q, k, v = attention.normal(rng, shape)
        return q, k, v + mean

    return family
