"""Memory that belongs to nobody: unused slots of pages, spare pages, what lies behind a tensor.

Isolates: the inputs stay, and what surrounds them changes: V alone, K and V, then NaN. Calls: 4,
and 5 more where something is read. Read: rows whose bits change; with q = 0, how many keys.
"""

import math
from collections.abc import Mapping

import numpy as np

from labkernels.defects import MEMORY
from labkernels.probing.case import Case
from labkernels.probing.experiments.repeats import other_bits, race
from labkernels.probing.layouts import Memory
from labkernels.probing.report import Fact, Findings, defect

NAME = "reads beyond the lengths"
SPOILT = "NaN there spoils the output"


def unused(c: Case) -> Findings:
    """Return the fact, and a defect if numbers of unused memory change the output."""
    before = c.kernel.calls
    large = 0.25 if c.u > 0.02 else 1.0  # fp8 ends at 448
    base = c.call(c.q, c.k, c.v)
    wrong = np.zeros(base.shape[:3], bool)
    for memory in (Memory(0.0, 400 * large), Memory(2.0, -300 * large)):
        wrong |= other_bits(c.call(c.q, c.k, c.v, memory=memory), base).any(-1)
    again = [c.call(c.q, c.k, c.v) for _ in range(3)] if wrong.any() else []
    if any(other_bits(x, base).any() for x in again):
        fact = Fact(NAME, "not read: equal calls differ", "4 equal calls", 6)
        return [fact, race(c, base, again)]
    if wrong.any():
        x, y = (c.call(c.zero, c.k, c.v, memory=Memory(0.0, v)) for v in (0.0, 256.0 * large))
        share = ((y - x) / (256 * large)).mean(-1)[wrong]
        n = np.broadcast_to(c.seen.sum(-1), wrong.shape)[wrong]
        count = share * n / np.maximum(1 - share, 1e-9)
        sentence = f"memory that belongs to no key is read, about {np.median(count):.2g} keys of it"
        ev = "K and V of unused slots changed, and the output with them"
        fact = Fact(NAME, "yes", ev, c.kernel.calls - before)
        return [fact, defect(MEMORY, sentence, ev, wrong)]
    nan = c.call(c.q, c.k, c.v, memory=Memory(math.nan, math.nan))
    value = SPOILT if np.isnan(nan).any() and not np.isnan(base).any() else "no"
    ev = "unused slots hold 400, -300, then NaN"
    return [Fact(NAME, value, ev, c.kernel.calls - before)]


def spoilt(facts: Mapping[str, Fact]) -> Findings:
    """Return a defect if NaN in unused slots spoils the output: its weight is 0, and 0 NaN is NaN.

    What these slots hold is not the kernel's to rely on. The mistake hides no other: it comes last.
    """
    fact = facts.get(NAME)
    sentence = "V of slots that no request uses is multiplied by 0, so that NaN there spoils rows"
    return [defect(MEMORY, sentence, fact.evidence)] if fact and fact.value == SPOILT else []
