"""Equal calls: the same inputs give the same bits.

Isolates: time and what earlier calls left behind. Calls: 6, one of them with other numbers between.
Read: elements whose bits differ; a defect if by more than rounding would.
"""

import numpy as np

from labkernels.defects import NONDETERMINISTIC
from labkernels.probing.case import Case
from labkernels.probing.report import Defect, Fact, defect


def repeats(c: Case) -> tuple[Fact, Defect | None]:
    """Return the fact "deterministic", and a defect if numbers differ by more than rounding."""
    base = c.call(c.q, c.k, c.v)
    again = [c.call(c.q, c.k, c.v)]
    c.call(c.rounded(-c.q), c.k, c.rounded(3 * c.v))
    again += [c.call(c.q, c.k, c.v) for _ in range(3)]
    if all(np.array_equal(base, x, equal_nan=True) for x in again):
        return Fact("deterministic", "yes", f"5 equal calls, others between, {c.label}", 6), None
    differ = np.logical_or.reduce([(x != base) & ~(np.isnan(x) & np.isnan(base)) for x in again])
    most = max(float(np.abs(x - base).max()) for x in again)
    _, mass, _ = c.expected(c.q, c.k, c.v)
    ev = f"by up to {most:.3g} in 5 equal calls, {c.label}"
    fact = Fact("deterministic", "no", ev, 6)
    if most <= 3 * c.u * mass.max():
        return fact, None  # the order of sums changes: a fact, and no wrong number
    sentence = f"the same call gives other numbers, by up to {most:.3g}"
    rows, channels = differ.any(-1), differ.any((0, 1, 2))
    return fact, defect(NONDETERMINISTIC, sentence, "5 equal calls", rows, channels=channels)
