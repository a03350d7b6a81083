"""The bugs of the eighteenth set, which is held out, each with a pattern of right names."""

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.held_out import (
    asked,
    edges,
    formats,
    loops,
    masks,
    pages,
    reads,
    splits,
)
from labkernels.measure.strangers.held_out.labels import PATTERNS
from labkernels.measure.strangers.inputs import Asked

_PARTS = (asked, edges, formats, loops, masks, pages, reads, splits)
WRONG: dict[str, tuple[Bug, str]] = {
    name: (bug, PATTERNS[name]) for part in _PARTS for name, bug in part.BUGS.items()
}
"""Name: the bug, and a pattern that a right name for it matches."""
ASKED: dict[str, Asked] = asked.ASKED
"""What a bug needs to be asked for."""
