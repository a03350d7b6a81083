"""Batch invariance: a request's bits do not depend on what else is in the call.

Isolates: another request or KV head changes; each request alone; permuted; among 17; other pages;
one NaN. Calls: 9 and one for each request. Read: bits that differ are a fact, numbers that differ
by more than rounding a defect; how far a NaN spreads.
"""

import contextlib
import math
from dataclasses import replace

import numpy as np

from labkernels.defects import BATCH
from labkernels.probing.case import Case
from labkernels.probing.experiments.repeats import other_bits, race
from labkernels.probing.layouts import PAGED, PLAIN, Refused
from labkernels.probing.report import Defect, Fact, Findings, defect

LARGE = 17  # planners that split by the batch show at more requests than a few
# Units of rounding between two calls of a request, rms over a row: each call rounds P, its partial
# outputs and its output, half a unit each (rms), so that two calls differ by 1.3; a row has noise.
APART = 4.0
# A common factor is read more exactly than single numbers are.
FACTOR = 2.5


def invariance(c: Case) -> Findings:
    """Return the fact "batch-invariant", and a defect if another request's numbers matter."""
    before = c.kernel.calls
    base = c.call(c.q, c.k, c.v)
    found = _neighbours(c, base)
    ways, most, wrong = {}, 0.0, np.zeros(base.shape[:3], bool)
    _, mass, _ = c.expected(c.q, c.k, c.v)
    for name, of, out in _calls(c):
        other, gap = other_bits(out, base[of]), np.abs(out - base[of])
        ways[name] = ways.get(name, True) and not other.any()
        far = ~(gap <= 4 * c.u * mass.max()) & other
        wrong[of] |= far.any(-1) | apart(c, out, base[of])
        most = max(most, float(gap.max()))
    if c.kernel.layout in PAGED:
        out = c.call(c.q, c.k, c.v, memory=replace(PLAIN, seed=5))
        ways["in other pages"] = not other_bits(out, base).any()
    no = ", ".join(name for name, same in ways.items() if not same)
    value = f"no: other bits {no}" if no else "yes"
    fact = Fact("batch-invariant", value, f"{', '.join(ways)}, {c.label}", c.kernel.calls - before)
    if found is not None or wrong.any():
        again = [c.call(c.q, c.k, c.v) for _ in range(3)]
        found = race(c, base, again) or found
    if found is None and wrong.any():
        sentence = f"a request gives another output {no}, by {most:.3g}"
        found = defect(BATCH, sentence, "the same request in other calls", wrong)
    return [fact, found]


def apart(c: Case, out: np.ndarray, base: np.ndarray) -> np.ndarray:
    """Return the rows [B, H, M] that differ by more than two right roundings do."""
    size = (base * base).sum(-1)
    factor = (out * base).sum(-1) / size
    rms = np.sqrt(((out - base) ** 2).sum(-1) / size)
    far = ~(np.abs(factor - 1) <= FACTOR * c.u + 2e-5) | ~(rms <= APART * c.u + 1e-4)
    return far & other_bits(out, base).any(-1) & (size > 0)


def _calls(c: Case):
    """Yield the same requests in other calls: words, which requests, their output."""
    for b in range(c.s.batch):
        yield "alone", [b], _of(c, [b])
    turned = range(c.s.batch)[::-1]
    yield "permuted", turned, _of(c, turned)
    with contextlib.suppress(Refused):
        out = _of(c, np.arange(LARGE) % c.s.batch)
        yield f"among {LARGE}", range(c.s.batch), out[: c.s.batch]


def _of(c: Case, of) -> np.ndarray:
    """Call the kernel with these requests."""
    of = list(of)
    some = tuple(c.s.lens[i] for i in of) if c.s.lens else None
    return c.kernel(c.q[of], c.k[of], c.v[of], some, PLAIN, c.knobs)[0]


def _neighbours(c: Case, base) -> Defect | None:
    """Change one request, then one KV head: no other row may change."""
    s = c.s
    for what, last in (("request", s.batch - 1), ("KV head", s.kv_heads - 1)):
        if last == 0:
            continue
        q, k, v = c.q.copy(), c.k.copy(), c.v.copy()
        i = np.s_[last] if what == "request" else np.s_[:, last]
        j = i if what == "request" else np.s_[:, last * c.group :]
        q[j], k[i] = c.rounded(3 * q[j]), c.rounded(2 * k[i][..., ::-1])
        v[i] = c.rounded((50 if c.u < 0.02 else 8) * v[i])
        out = c.call(q, k, v)
        changed: np.ndarray = np.any(other_bits(out, base), -1)
        changed[j] = False
        if changed.any():
            most = np.abs(out - base)[changed].max()
            sentence = f"the numbers of another {what} change this output, by {most:.3g}"
            return defect(BATCH, sentence, f"one {what} changed", changed)
    return None


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
    found: Findings = [Fact("NaN", "; ".join(said), "one NaN each in request 0, head 0", 3)]
    if spread.any():
        sentence = "a NaN spreads to other requests or heads"
        found.append(defect(BATCH, sentence, "one NaN", spread))
    return found
