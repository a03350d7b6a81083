"""The bugs of the fourteenth set, each with a pattern that a right name for it matches."""

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.inputs import Asked
from labkernels.measure.strangers.looked_at.fourteenth import (
    caches,
    grids,
    numbers,
    sights,
    sums,
    tiles,
)

WRONG: dict[str, tuple[Bug, str]] = (
    caches.WRONG | grids.WRONG | sums.WRONG | sights.WRONG | numbers.WRONG | tiles.WRONG
)
"""Name: the bug, and a pattern that a right name for it matches."""
ASKED: dict[str, Asked] = sights.ASKED
"""What a bug needs to be asked for."""
