"""The bugs of the eleventh set, each with a pattern that a right name for it matches."""

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.inputs import Asked
from labkernels.measure.strangers.looked_at.eleventh import (
    grids,
    merges,
    numbers,
    pools,
    sights,
    turns,
)

WRONG: dict[str, tuple[Bug, str]] = (
    pools.WRONG | sights.WRONG | numbers.WRONG | turns.WRONG | merges.WRONG | grids.WRONG
)
"""Name: the bug, and a pattern that a right name for it matches."""
ASKED: dict[str, Asked] = sights.ASKED
"""What a bug needs to be asked for."""
