"""The bugs of the thirteenth set, each with a pattern that a right name for it matches."""

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.inputs import Asked
from labkernels.measure.strangers.looked_at.thirteenth import (
    masks,
    numbers,
    pages,
    rows,
    sums,
    tiles,
)

WRONG: dict[str, tuple[Bug, str]] = (
    pages.WRONG | tiles.WRONG | sums.WRONG | rows.WRONG | masks.WRONG | numbers.WRONG
)
"""Name: the bug, and a pattern that a right name for it matches."""
ASKED: dict[str, Asked] = masks.ASKED
"""What a bug needs to be asked for."""
