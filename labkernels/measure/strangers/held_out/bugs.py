"""The bugs of the sixteenth held-out set, each with a pattern that a right name for it matches."""

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.inputs import Asked

WRONG: dict[str, tuple[Bug, str]] = {}
"""Name: the bug, and a pattern that a right name for it matches."""
ASKED: dict[str, Asked] = {}
"""What a bug needs to be asked for."""
