"""From a syndrome to its cause: which experiments failed, and how, says where the mistake lies.

The order matters more than cleverness. What shows with the same V everywhere cannot be a matter of
which key is read; what shows with q = 0 cannot be a matter of scores; and so on.
"""

import numpy as np

from labkernels.probing.diagnosis.counts import of_counts, of_heads
from labkernels.probing.diagnosis.scores import of_scores, of_weights
from labkernels.probing.diagnosis.sums import of_sums
from labkernels.probing.observed import Observed
from labkernels.probing.report import Defect

RULES = (of_sums, of_heads, of_counts, of_scores, of_weights)

OTHERS = 0.4  # of another head's V, at least
MOVED = 0.1  # of a row's own V, at most, is left where it reads another's


def diagnose(o: Observed) -> Defect | None:
    """Return the cause of what failed, or None where nothing did."""
    if not o.failed:
        return None
    o.read_maps()
    rules = RULES
    if o.map_wrong.any():
        # Whole rows that have another head's V are that, whatever their sums are.
        share, own = (x[o.map_wrong] for x in (o.share, o.own > 0))
        mine, other = np.where(own, share, 0), np.where(own, 0, share)
        if mine.max() < MOVED and other.max((-1, -2)).min() > OTHERS:
            rules = (of_heads, *RULES)
    return next((found for rule in rules if (found := rule(o)) is not None), o.empty)
