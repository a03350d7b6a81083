"""Edges of the input: requests without keys, NaN among the inputs.

Isolates: one request of length 0; one NaN in Q, K or V of one request. Calls: 1 and 3.
Read: what a row without keys gives, and how far a NaN spreads.
"""

import math
from dataclasses import replace

import numpy as np

from labkernels.defects import BATCH, LSE, STORE, WEIGHTS
from labkernels.probing.case import Case
from labkernels.probing.report import Fact, Findings, defect


def empty(c: Case) -> Findings:
    """Return what a request without keys gives; a defect unless that is 0."""
    if not c.s.lens or c.s.batch < 2:
        return [Fact("empty request", "not read", "this layout has none", 0)]
    lens = (0, 17, *c.s.lens)[: c.s.batch]
    one = Case(c.kernel, replace(c.s, lens=lens), c.model, "empty request", c.seed, c.knobs)
    answer = one.answer(one.q, one.k, one.v)
    out, lse = answer.out[0], None if answer.lse is None else answer.lse[0]
    right = (out == 0).all()
    first, value = "" if lse is None else f"{lse.flat[0]:.3g}", f"{out.flat[0]:.3g}"
    words = f"{'0' if right else value}{first and f', LSE {first}'}"
    fact, others = Fact("empty request", words, "lengths 0 and 17", 1), one.far(answer.out)
    others[0] = False
    if others.any():
        sentence = "a request without keys changes the others"
        return [fact, defect(BATCH, sentence, "lengths 0 and 17", others)]
    rows = np.zeros(answer.out.shape[:3], bool)
    rows[0] = True
    if not right:
        kind = WEIGHTS if np.isnan(out).any() else STORE
        sentence = f"the output of a request without keys is {value}, not 0"
        return [fact, defect(kind, sentence, "length 0", rows)]
    # -inf is the sum's logarithm, and +inf FlashAttention's convention; no number is either.
    if lse is None or np.isinf(lse).all():
        return [fact]
    sentence = f"the LSE of a request without keys is {first}, not infinite"
    return [fact, defect(LSE, sentence, "length 0", rows)]


def special_numbers(c: Case) -> Findings:
    """Return how NaN in V, K and Q spread."""
    said, spread = [], np.zeros(c.q.shape[:3], bool)
    for name in ("V", "K", "Q"):
        tensors = {"Q": c.q.copy(), "K": c.k.copy(), "V": c.v.copy()}
        tensors[name][0, 0, 0, 1] = math.nan
        nan = np.isnan(c.call(*tensors.values()))
        reach = nan[0, :1, :1] if name == "Q" else nan[0, : c.group]
        words = "its rows" if reach.any(-1).all() else "some of its rows"
        said.append(f"NaN in {name}: {words if reach.any() else 'no row'}")
        nan[0, : c.group] = False
        spread |= nan.any(-1)
    found = [Fact("NaN", "; ".join(said), "one NaN each in request 0, head 0", 3)]
    if spread.any():
        sentence = "a NaN spreads to other requests or heads"
        found.append(defect(BATCH, sentence, "one NaN", spread))
    return found
