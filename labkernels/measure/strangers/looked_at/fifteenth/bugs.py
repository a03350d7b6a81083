"""The bugs of the fifteenth set, each with a pattern that a right name for it matches."""

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.inputs import Asked
from labkernels.measure.strangers.looked_at.fifteenth import (
    asks,
    caches,
    heads,
    loops,
    merges,
    numbers,
    stores,
)
from labkernels.measure.strangers.looked_at.fifteenth.labels import PATTERNS

_PARTS = (asks, caches, heads, loops, merges, numbers, stores)
WRONG: dict[str, tuple[Bug, str]] = {
    name: (bug, PATTERNS[name]) for part in _PARTS for name, bug in part.BUGS.items()
}
"""Name: the bug, and a pattern that a right name for it matches."""
ASKED: dict[str, Asked] = asks.ASKED
"""What a bug needs to be asked for."""
