"""Find the bugs that a tolerance accepts, by trying each on a part of a test's inputs."""

import numpy as np

from labkernels.audit.tolerance import Tolerance
from labkernels.measure.strangers import inputs, right, split, wrong

_MOST_SCORES = 2**17  # scores of all heads of a part; a bug then takes some ten milliseconds


def shape_like(
    batch: int, q_heads: int, kv_heads: int, queries: int, keys: int, dim: int, *, causal: bool
) -> inputs.Shape:
    """Return a part of a test: all keys, up to two requests, two KV heads and groups of two."""
    kv = min(2, kv_heads)
    group = min(2, q_heads // kv_heads)
    requests = min(2, batch)
    rows = max(1, _MOST_SCORES // (requests * kv * group * keys))
    return inputs.Shape(requests, kv * group, kv, min(queries, rows), keys, dim, causal=causal)


def bugs(
    tolerance: Tolerance, shape: inputs.Shape, dtype: str, *, mean: float = 0.0, seed: int = 0
) -> tuple[list[str], int]:
    """Return the bugs whose outputs are inside the tolerance, and how many changed any bit."""
    call = inputs.drawn_call(_normal(mean), [seed], shape, dtype)
    truth = right.exact(call)[0].numpy()
    good = wrong.run(lambda w: wrong.attend(w.s, w.v, call.q.dtype), call)
    passed, tried = [], 0
    for name, (bug, _) in split.WRONG.items():
        if name in split.ASKED:  # the test asks for no window, cap, sinks or slopes
            continue
        out = wrong.run(bug, call)
        if out.equal(good):
            continue
        tried += 1
        if tolerance.accepts(out.double().numpy(), truth):
            passed.append(name)
    return passed, tried


def _normal(mean: float):
    def family(rng: np.random.Generator, shape: inputs.Shape):
        q, k, v = inputs.FAMILIES["normal"](rng, shape)
        return q, k, v + mean

    return family
