"""The bugs of the sixteenth held-out set, each with a pattern that a right name for it matches."""

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.held_out import caches, loops, merges, numbers, scores, sights
from labkernels.measure.strangers.held_out.labels import PATTERNS
from labkernels.measure.strangers.inputs import Asked

_PARTS = (caches, loops, merges, numbers, scores, sights)
WRONG: dict[str, tuple[Bug, str]] = {
    name: (bug, PATTERNS[name]) for part in _PARTS for name, bug in part.BUGS.items()
}
"""Name: the bug, and a pattern that a right name for it matches."""
ASKED: dict[str, Asked] = sights.ASKED
"""What a bug needs to be asked for."""
