"""From a syndrome to its cause: which experiments failed, and how, says where the mistake lies.

The order matters more than cleverness. What shows with the same V everywhere cannot be a matter of
which key is read; what shows with q = 0 cannot be a matter of scores; and so on.
"""

import numpy as np

from labkernels.probing.diagnosis.counts import of_counts
from labkernels.probing.diagnosis.heads import of_heads
from labkernels.probing.diagnosis.scores import of_scores
from labkernels.probing.diagnosis.sums import of_sums
from labkernels.probing.diagnosis.weights import of_weights
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
    # Whole rows that have another head's V are that, whatever their sums are.
    rows = o.map_wrong
    moved = False
    if rows.any():
        n = int(rows.sum())
        own, other = (np.where((o.own > 0) == x, o.share, 0)[rows].reshape(n, -1) for x in (1, 0))
        moved = own.max() < MOVED and other.max(-1).min() > OTHERS
    for rule in (of_heads, *RULES) if moved else RULES:
        found = rule(o)
        if found is not None:
            return found
    return o.empty


__all__ = ["diagnose"]
