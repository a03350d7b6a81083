"""The bugs of the tenth set, each with a pattern that a right name for it matches."""

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.inputs import Asked
from labkernels.measure.strangers.looked_at.tenth import (
    bits,
    caches,
    epilogues,
    joins,
    loops,
    masks,
    places,
)

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
