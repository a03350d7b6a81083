"""The bugs of the eighth set: wrong reads, wrong sums, wrong masks."""

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.inputs import Asked
from labkernels.measure.strangers.looked_at.eighth import bugs_of_masks, bugs_of_reads, bugs_of_sums

WRONG: dict[str, tuple[Bug, str]] = (
    bugs_of_reads.WRONG | bugs_of_sums.WRONG | bugs_of_masks.WRONG | bugs_of_masks.wrong_asked()
)
"""Name: the bug, and a pattern that a right name for it matches."""

ASKED: dict[str, Asked] = {
    name: asked for name, (asked, _, _) in bugs_of_masks.OF_WHAT_WAS_ASKED.items()
}
"""Name of a bug: what its call asks for beside a causal mask."""
