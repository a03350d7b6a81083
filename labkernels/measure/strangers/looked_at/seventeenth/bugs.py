"""The bugs of the seventeenth set, each with a pattern of right names."""

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.inputs import Asked
from labkernels.measure.strangers.looked_at.seventeenth import (
    asked,
    formats,
    masks,
    rows,
    splits,
    tables,
    tiles,
    turns,
)
from labkernels.measure.strangers.looked_at.seventeenth.labels import PATTERNS

_PARTS = (asked, formats, masks, rows, splits, tables, tiles, turns)
WRONG: dict[str, tuple[Bug, str]] = {
    name: (bug, PATTERNS[name]) for part in _PARTS for name, bug in part.BUGS.items()
}
"""Name: the bug, and a pattern that a right name for it matches."""
ASKED: dict[str, Asked] = asked.ASKED | masks.ASKED
"""What a bug needs to be asked for."""
