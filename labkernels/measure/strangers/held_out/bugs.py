"""Bugs that are held out, by two writers who had seen neither the verdict nor each other's list."""

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.held_out import bugs_of_another, bugs_of_one

WRONG: dict[str, tuple[Bug, str]] = bugs_of_one.WRONG | bugs_of_another.WRONG
"""Name: the bug, and a pattern that a right name for it matches."""
