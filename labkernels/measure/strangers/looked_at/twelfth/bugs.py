"""The bugs of the twelfth set, each with a pattern that a right name for it matches."""

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.inputs import Asked
from labkernels.measure.strangers.looked_at.twelfth import (
    fetches,
    gathers,
    logits,
    stores,
    streams,
    views,
)

WRONG: dict[str, tuple[Bug, str]] = (
    fetches.WRONG | views.WRONG | logits.WRONG | streams.WRONG | gathers.WRONG | stores.WRONG
)
"""Name: the bug, and a pattern that a right name for it matches."""
ASKED: dict[str, Asked] = views.ASKED | logits.ASKED
"""What a bug needs to be asked for."""
