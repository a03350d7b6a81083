"""The bugs of the tenth held-out set, each with a pattern that a right name for it matches."""

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.held_out import (
    bits,
    caches,
    epilogues,
    joins,
    loops,
    masks,
    places,
)
from labkernels.measure.strangers.inputs import Asked

WRONG: dict[str, tuple[Bug, str]] = (
    caches.WRONG
    | masks.WRONG
    | places.WRONG
    | bits.WRONG
    | loops.WRONG
    | joins.WRONG
    | epilogues.WRONG
)
"""Name: the bug, and a pattern that a right name for it matches."""
ASKED: dict[str, Asked] = caches.ASKED | masks.ASKED | joins.ASKED
"""What a bug needs to be asked for."""
