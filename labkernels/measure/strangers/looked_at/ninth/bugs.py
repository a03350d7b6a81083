"""The bugs of the ninth set, each with a pattern that a right name for it matches."""

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.inputs import Asked
from labkernels.measure.strangers.looked_at.ninth import online, reads, scores, stores

WRONG: dict[str, tuple[Bug, str]] = reads.WRONG | scores.WRONG | online.WRONG | stores.WRONG
"""Name: the bug, and a pattern that a right name for it matches."""
ASKED: dict[str, Asked] = scores.ASKED
"""What a bug needs to be asked for."""
