"""Equal calls: the same inputs give the same bits.

Isolates: time and what earlier calls left behind. Calls: 9, 4 equal ones with random inputs, 4 with
q = 0, one with other numbers between. Read: elements whose bits differ; a defect if more of them,
or by more, than the order of sums in fp32 explains.
"""

import numpy as np

from labkernels.defects import NONDETERMINISTIC
from labkernels.probing.case import Case
from labkernels.probing.report import Defect, Fact, Findings, defect

FLIPPED = 0.05  # of 16-bit outputs: another order of fp32 sums rounds fewer of them otherwise


def other_bits(x: np.ndarray, base: np.ndarray) -> np.ndarray:
    """Return where two outputs differ, NaN being equal to NaN."""
    return (x != base) & ~(np.isnan(x) & np.isnan(base))


def race(c: Case, base: np.ndarray, again: list[np.ndarray]) -> Defect | None:
    """Return a defect if outputs of equal calls differ by more than the order of sums explains."""
    differ = [other_bits(x, base) for x in again]
    wrong = np.logical_or.reduce(differ)
    most = max(float(np.abs(x - base).max()) for x in again)
    _, mass, _ = c.expected(c.q, c.k, c.v)
    share = max(float(x.mean()) for x in differ)
    few = share <= FLIPPED or c.u < 1e-6
    if not wrong.any() or (few and most <= 3 * c.u * mass.max()):
        return None
    of_them = f"{100 * share:.0f} % of them"
    sentence = f"the same call gives other numbers, {of_them}, by up to {most:.3g}"
    ev = f"{1 + len(again)} equal calls"
    return defect(NONDETERMINISTIC, sentence, ev, wrong.any(-1), channels=wrong.any((0, 1, 2)))


def repeats(c: Case) -> Findings:
    """Return the fact "deterministic", and a defect if numbers differ by more than rounding."""
    found, bits = None, True
    for q, between in ((c.q, True), (c.zero, False)):
        base = c.call(q, c.k, c.v)
        if between:
            c.call(c.rounded(-c.q), c.k, c.rounded(3 * c.v))
        again = [c.call(q, c.k, c.v) for _ in range(3)]
        bits &= not any(other_bits(x, base).any() for x in again)
        found = found or race(c, base, again)
    ev = f"8 equal calls, others between, {c.label}"
    return [Fact("deterministic", "yes" if bits else "no", ev, 9), found]
