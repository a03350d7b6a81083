"""Lengths around the edges of tiles, long ones with several steps for each warp and split, and 0.

Isolates: the number of keys alone. Calls: one a length. Read: lengths whose output is wrong, which
are then read as cases of their own; lengths that are refused; what a row without keys gives.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from labkernels.defects import BATCH, LSE, STORE, WEIGHTS
from labkernels.probing.case import Case
from labkernels.probing.experiments.inputs import Compared, against
from labkernels.probing.report import Fact, Findings, defect
from labkernels.units import LOG2_E

EDGES = (1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 192, 256, 257)
LONG = (1025, 2048)


def tried(base: Case) -> tuple[int, ...]:
    """Return the numbers of keys to try: all in decode, and half of the edges in prefill."""
    return (*(EDGES if base.s.queries == 1 else EDGES[1::2]), *LONG)


def wrong(base: Case, run: Callable) -> Iterator[tuple[Case, Compared]]:
    """Yield the case of each length whose output is wrong, and its call; run notes refusals."""
    s = base.s
    for n in tried(base):
        m, batch = min(s.queries, n), min(s.batch, 2)
        sizes = replace(s, batch=batch, queries=m, keys=n, lens=s.lens and (n,) * batch)
        if n in LONG:
            sizes = replace(sizes, batch=1, queries=min(m, 5), lens=s.lens and (n,))
        c = Case(base.kernel, sizes, base.model, f"{n} keys", n, base.knobs)
        q, k, c.v = _many_steps(c) if n in LONG else (c.q, c.k, c.v)
        found = run(f"{m} queries, {n} keys", against, c, c.label, q, k, c.v)
        if found is not None and found.rows.any():
            yield c, found


def _many_steps(c: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return inputs whose maximum rises a little in most tiles, and a V of one sign.

    What came before still has weight when a rescale is left out, and shows in the sum.
    """
    q, k = 0.7 * c.q, c.k.copy()
    q[..., 0] = 1.0 / c.model.scale
    k[..., 0] = np.linspace(-0.8, 0.8, c.s.keys)
    return c.rounded(q), c.rounded(k), c.rounded(0.1 * c.v + c.row)


def empty(c: Case) -> Findings:
    """Return what a request without keys gives; a defect unless that is 0, and its LSE infinite.

    With sinks, the LSE may be that of the sinks alone.
    """
    if not c.s.lens or c.s.batch < 2:
        return [Fact("empty request", "not read", "this layout has none", 0)]
    lens = (0, 17, *c.s.lens)[: c.s.batch]
    one = Case(c.kernel, replace(c.s, lens=lens), c.model, "empty request", c.seed, c.knobs)
    found, lses = one.answer(one.q, one.k, one.v)
    out, lse = found[0], None if lses is None else lses[0]
    right = (out == 0).all()
    first, value = "" if lse is None else f"{lse.flat[0]:.3g}", f"{out.flat[0]:.3g}"
    words = f"{'0' if right else value}{first and f', LSE {first}'}"
    fact, others = Fact("empty request", words, "lengths 0 and 17", 1), one.far(found)
    others[0] = False
    if others.any():
        sentence = "a request without keys changes the others"
        return [fact, defect(BATCH, sentence, "lengths 0 and 17", others)]
    rows = np.zeros(found.shape[:3], bool)
    rows[0] = True
    if not right:
        kind = WEIGHTS if np.isnan(out).any() else STORE
        sentence = f"the output of a request without keys is {value}, not 0"
        return [fact, defect(kind, sentence, "length 0", rows)]
    # -inf is the sum's logarithm, and +inf FlashAttention's convention; no number is either.
    if lse is None or np.isinf(lse).all() or _of_sinks(c, lse):
        return [fact]
    sentence = f"the LSE of a request without keys is {first}, not infinite"
    return [fact, defect(LSE, sentence, "length 0", rows)]


def _of_sinks(c: Case, lse: np.ndarray) -> bool:
    """Return whether each head's LSE is its sink, base e or 2.

    A sink was read where it has half of the weight or so, and is known to twice the weights' error.
    """
    if c.model.sinks is None:
        return False
    off = [np.abs(lse - base * c.model.sinks[:, None]).max() for base in (1.0, LOG2_E)]
    return bool(min(off) <= 2 * LOG2_E * c.tol)
