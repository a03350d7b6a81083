"""From a syndrome to its cause: which experiments failed, and how, says where the mistake lies.

The order matters more than cleverness. What shows with the same V everywhere cannot be a matter of
which key is read; what shows with q = 0 cannot be a matter of scores; and so on.
"""

from labkernels.probing.diagnosis.counts import of_counts
from labkernels.probing.diagnosis.heads import of_heads
from labkernels.probing.diagnosis.scores import of_scores
from labkernels.probing.diagnosis.sums import of_sums
from labkernels.probing.diagnosis.weights import of_weights
from labkernels.probing.observed import Observed
from labkernels.probing.report import Defect

RULES = (of_sums, of_heads, of_counts, of_scores, of_weights)


def diagnose(o: Observed) -> Defect | None:
    """Return the cause of what failed, or None where nothing did."""
    if not o.failed:
        return None
    o.read_maps()
    for rule in RULES:
        found = rule(o)
        if found is not None:
            return found
    return o.empty


__all__ = ["diagnose"]
