"""Memory that belongs to nobody: unused slots of pages, spare pages, what lies behind a tensor.

Isolates: the inputs stay, and what surrounds them changes: V alone, K and V, then NaN. Calls: 4,
and 2 more where something is read. Read: rows whose bits change; with q = 0, how many keys.
"""

import math

import numpy as np

from labkernels.defects import MEMORY
from labkernels.probing.case import Case
from labkernels.probing.layouts import Memory
from labkernels.probing.report import Defect, Fact, defect

NAME = "reads beyond the lengths"


def unused(c: Case) -> tuple[Fact, Defect | None]:
    """Return the fact, and a defect if numbers of unused memory change the output."""
    before = c.kernel.calls
    large = 0.25 if c.u > 0.02 else 1.0  # fp8 ends at 448
    base = c.call(c.q, c.k, c.v)
    wrong = np.zeros(base.shape[:3], bool)
    for memory in (Memory(0.0, 400 * large), Memory(2.0, -300 * large)):
        out = c.call(c.q, c.k, c.v, memory=memory)
        wrong |= ((out != base) & ~(np.isnan(out) & np.isnan(base))).any(-1)
    if wrong.any():
        x, y = (c.call(c.zero, c.k, c.v, memory=Memory(0.0, v)) for v in (0.0, 256.0 * large))
        with np.errstate(all="ignore"):
            share = ((y - x) / (256 * large)).mean(-1)[wrong]
            n = np.broadcast_to(c.seen.sum(-1), wrong.shape)[wrong]
            count = share * n / np.maximum(1 - share, 1e-9)
        sentence = f"memory that belongs to no key is read, about {np.median(count):.2g} keys of it"
        ev = "K and V of unused slots changed, and the output with them"
        fact = Fact(NAME, "yes", ev, c.kernel.calls - before)
        return fact, defect(MEMORY, sentence, ev, wrong)
    nan = c.call(c.q, c.k, c.v, memory=Memory(math.nan, math.nan))
    spoilt = np.isnan(nan).any() and not np.isnan(base).any()
    value = "harmless, but NaN there spoils the output" if spoilt else "no"
    return Fact(NAME, value, "unused slots hold 400, -300, then NaN", c.kernel.calls - before), None
