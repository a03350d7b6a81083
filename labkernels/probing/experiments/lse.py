"""The log-sum-exp: its base and convention, from the calls with special inputs.

Isolates: nothing; the output of those calls is already judged. Calls: 0. Read: the base that fits
best, and the rows whose number is another.
"""

import math

import numpy as np

from labkernels.defects import LSE
from labkernels.probing.experiments.inputs import Compared
from labkernels.probing.report import Fact, Findings, defect

BASES = {"e": 1.0, "2": math.log(2)}
EXACT = 1e-3  # of the log-sum-exp: sums in fp32 and an exp2 by a cubic stay well below


def judged(compared: list[Compared]) -> Findings:
    """Return the fact, and a defect if some numbers are others."""
    seen = [x for x in compared if x.answer.lse is not None]
    if not seen:
        return [Fact("LSE", "not returned", "the function returns the output alone", 0)]
    got, want = (np.stack([x.answer.lse for x in seen]), np.stack([x.lse for x in seen]))
    ok = np.isfinite(want)
    if not ok.any():
        return [Fact("LSE", "not read", "no row has keys", 0)]
    off = {}
    for base, f in BASES.items():
        size = np.maximum(1, np.abs(want / f))
        off[base] = np.where(ok, np.abs(got - want / f) / size, 0.0)
    base = min(off, key=lambda x: np.nan_to_num(np.median(off[x][ok]), nan=np.inf))
    wrong = ~(off[base] <= EXACT)
    most = float(np.max(np.where(np.isfinite(off[base]), off[base], np.inf)))
    ev = f"largest error {most:.2g} of {int(ok.sum())}"
    if not wrong.any():
        return [Fact("LSE", f"natural scores, base {base}, of the sum", ev, 0)]
    gap = (got - want / BASES[base])[wrong & np.isfinite(got)]
    factor = float(np.median(got[ok] / want[ok]))
    how = f"off by {np.median(gap):.4g}" if gap.size else "not finite"
    if gap.size and wrong[ok].mean() > 0.9:
        if np.ptp(gap) < 2e-3 * max(1.0, abs(float(np.median(gap)))):
            how += " everywhere"
        elif np.ptp((got / np.where(want == 0, 1, want))[wrong]) < 1e-3 * abs(factor):
            how = f"{factor:.4g} times the natural one everywhere"
    mistake = defect(LSE, f"the log-sum-exp is {how}", f"{ev}, base {base}", wrong.any(0))
    return [Fact("LSE", f"wrong: {how}", ev, 0), mistake]
