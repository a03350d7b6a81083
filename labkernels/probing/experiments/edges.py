"""Edges of the input: requests without keys, NaN and infinity among the inputs.

Isolates: one request of length 0; one NaN or infinity in Q, K or V of one request. Calls: 1 and 4.
Read: what a row without keys gives, and how far a NaN spreads.
"""

import math
from dataclasses import replace

import numpy as np

from labkernels.defects import BATCH, LSE, STORE, WEIGHTS
from labkernels.probing.case import Case
from labkernels.probing.report import Defect, Fact, defect


def empty(c: Case) -> tuple[list[Fact], Defect | None]:
    """Return what a request without keys gives; a defect unless that is 0."""
    if not c.s.lens or c.s.batch < 2:
        return [Fact("empty request", "not read", "this layout has none", 0)], None
    lens = (0, 17, *c.s.lens)[: c.s.batch]
    one = Case(c.kernel, replace(c.s, lens=lens), c.model, "empty request", c.seed, c.knobs)
    answer = one.answer(one.q, one.k, one.v)
    out = answer.out[0]
    lse = "" if answer.lse is None else f", LSE {answer.lse[0].flat[0]:.3g}"
    value = "0" if (out == 0).all() else f"{out.flat[0]:.3g}"
    fact = Fact("empty request", f"{value}{lse}", "lengths 0 and 17", 1)
    want, mass, _ = one.expected(one.q, one.k, one.v)
    others = ~(np.abs(answer.out - want) <= 4 * one.tol * (mass + 0.1)).all(-1)
    others[0] = False
    if others.any():
        sentence = "a request without keys changes the others"
        return [fact], defect(BATCH, sentence, "lengths 0 and 17", others)
    rows = np.zeros(answer.out.shape[:3], bool)
    rows[0] = True
    if (out == 0).all():
        # -inf is the sum's logarithm, and +inf FlashAttention's convention; no number is either.
        if answer.lse is None or np.isinf(answer.lse[0]).all():
            return [fact], None
        sentence = f"the LSE of a request without keys is {answer.lse[0].flat[0]:.3g}, not infinite"
        return [fact], defect(LSE, sentence, "length 0", rows)
    sentence = f"the output of a request without keys is {out.flat[0]:.3g}, not 0"
    return [fact], defect(WEIGHTS if np.isnan(out).any() else STORE, sentence, "length 0", rows)


def special_numbers(c: Case) -> tuple[list[Fact], Defect | None]:
    """Return how NaN in V, K and Q, and an infinite score, spread."""
    base = c.call(c.q, c.k, c.v)
    said, spread = [], np.zeros(base.shape[:3], bool)
    for name, value in (("NaN in V", math.nan), ("NaN in K", math.nan), ("NaN in Q", math.nan)):
        q, k, v = c.q.copy(), c.k.copy(), c.v.copy()
        {"V": v, "K": k, "Q": q}[name[-1]][0, 0, 0, 1] = value
        out = c.call(q, k, v)
        nan = np.isnan(out)
        reach = nan[0, : c.group if name[-1] != "Q" else 1]
        if name == "NaN in Q":
            reach = reach[:, :1]
        words = (
            "its rows" if reach.any(-1).all() else "some of its rows" if reach.any() else "no row"
        )
        said.append(f"{name}: {words}")
        outside = nan.any(-1)
        outside[0, : c.group] = False
        spread |= outside
    fact = Fact("NaN", "; ".join(said), "one NaN each in request 0, head 0", 4)
    if not spread.any():
        return [fact], None
    return [fact], defect(BATCH, "a NaN spreads to other requests or heads", "one NaN", spread)
