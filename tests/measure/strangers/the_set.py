"""A set as `labkernels record strangers --peer-path` takes it: one drawn mistake of each edit."""

from labkernels.measure.strangers import drawn
from labkernels.measure.strangers.runs import BugSet
from tests.measure.strangers import inputs, right

SET = BugSet(
    "development",
    inputs.FAMILIES,
    inputs.SHAPES,
    right.RIGHT,
    {
        name: (drawn.mistake(i).output, (edit.kind,))
        for i, (name, edit) in enumerate(drawn.EDITS.items())
    },
)
