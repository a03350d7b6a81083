"""Sets of inputs, right implementations and bugs: the development set, and the newest one.

The bugs of the development set are drawn mistakes, one of each edit.

The newest set is test data. It lies in `tests/strangers` of a checkout, so that nobody who works on
the verdict needs to read it.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from labkernels import places
from labkernels.measure.strangers import drawn, inputs, right
from labkernels.measure.strangers.inputs import Asked, Call, Shape
from labkernels.measure.strangers.wrong import Bug

DEVELOPMENT, HELD_OUT = "development", "held out"
FIRST_HELD_OUT_SEED = 90_000  # smaller seeds were judged while the verdict was written


@dataclass(frozen=True)
class BugSet:
    """Families of inputs, shapes, right implementations and bugs that belong together.

    wrong: by name, the bug and the classes of labkernels.defects of which one is a right answer.
    asked: what a call must ask for so that a bug shows. keys: of the bugs in one run of keys, the
    first key and the one after the last, counted from the end below 0.
    """

    name: str
    families: Mapping[str, Callable]
    shapes: tuple[Shape, ...]
    right: Mapping[str, Callable[[Call], torch.Tensor]]
    wrong: Mapping[str, tuple[Bug, tuple[str, ...]]]
    asked: Mapping[str, Asked] = field(default_factory=dict)
    keys: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)

    def call(self, family: str, dtype: str, seed: int, bug: str = "") -> Call:
        """Return the call of a seed, which takes the shapes in turn, with what a bug needs."""
        shape = self.shapes[seed % len(self.shapes)]
        call = inputs.call(family, shape, dtype, seed, self.families)
        return inputs.asking(call, self.asked[bug]) if bug in self.asked else call


FIRST = BugSet(
    DEVELOPMENT,
    inputs.FAMILIES,
    inputs.SHAPES,
    right.RIGHT,
    {
        name: (drawn.mistake(i).output, (edit.kind,))
        for i, (name, edit) in enumerate(drawn.EDITS.items())
    },
)


def newest() -> BugSet | None:
    """Return the set in `tests/strangers` of this checkout; None in an installed package."""
    if places.CHECKOUT is None or not (places.CHECKOUT / "tests" / "strangers").is_dir():
        return None
    root = str(places.CHECKOUT)
    if root not in sys.path:
        sys.path.append(root)
    found: BugSet = importlib.import_module("tests.strangers.the_set").SET
    return found
