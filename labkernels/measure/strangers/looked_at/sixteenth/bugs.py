"""The bugs of the sixteenth set, each with a pattern that a right name for it matches."""

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.inputs import Asked
from labkernels.measure.strangers.looked_at.sixteenth import (
    caches,
    loops,
    merges,
    numbers,
    scores,
    sights,
)
from labkernels.measure.strangers.looked_at.sixteenth.labels import PATTERNS

_PARTS = (caches, loops, merges, numbers, scores, sights)
WRONG: dict[str, tuple[Bug, str]] = {
    name: (bug, PATTERNS[name]) for part in _PARTS for name, bug in part.BUGS.items()
}
"""Name: the bug, and a pattern that a right name for it matches."""
ASKED: dict[str, Asked] = sights.ASKED
"""What a bug needs to be asked for."""
