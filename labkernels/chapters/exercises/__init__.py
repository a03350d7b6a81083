"""Assignments that check themselves: a reader writes part of a kernel, and the CPU machine runs it.

    from labkernels.chapters import exercises
    exercises.get("rescale")            # the task, and a starter to edit
    exercises.check("rescale", source)  # what is wrong with it, in the reader's own lines
    exercises.get("rescale").hint(1)    # hints go from a nudge to nearly the answer

In a notebook, `%load_ext labkernels.chapters.exercises` brings the cells `%%cuda rescale` and
`%%triton triton_update`, whose text is the answer.
"""

from labkernels.chapters.exercises.checking import check
from labkernels.chapters.exercises.exercise import Exercise, Mistake, get, names
from labkernels.chapters.exercises.graders.planted import planted_bug
from labkernels.chapters.exercises.magics import load_ipython_extension
from labkernels.chapters.exercises.report import Report

__all__ = [
    "Exercise",
    "Mistake",
    "Report",
    "check",
    "get",
    "load_ipython_extension",
    "names",
    "planted_bug",
]
