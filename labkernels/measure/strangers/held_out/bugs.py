"""The bugs of the fifteenth held-out set, each with a pattern that a right name for it matches."""

import re

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.held_out import (
    asks,
    caches,
    heads,
    loops,
    merges,
    numbers,
    stores,
)
from labkernels.measure.strangers.inputs import Asked

BUGS: dict[str, Bug] = (
    asks.BUGS | caches.BUGS | heads.BUGS | loops.BUGS | merges.BUGS | numbers.BUGS | stores.BUGS
)
WRONG: dict[str, tuple[Bug, str]] = {name: (bug, re.escape(name)) for name, bug in BUGS.items()}
"""Name: the bug, and a pattern that a right name for it matches."""
ASKED: dict[str, Asked] = asks.ASKED
"""What a bug needs to be asked for."""
