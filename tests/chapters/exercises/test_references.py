"""What is recorded of the references of Hopper assignments.

This file records it again: python -m tests.chapters.exercises.test_references
"""

import importlib
import tomllib
from pathlib import Path

import pytest

from labkernels.chapters import exercises
from labkernels.chapters.exercises import beside_reference, compiled
from labkernels.cuda.compiler import nvrtc

FILE = Path(compiled.__file__).with_name("references.toml")
NAMES = [name for name in exercises.names() if exercises.get(name).grader == "hopper"]


def found(name):
    """Return registers and bytes of a compiled reference, and its turns, each by its hash."""
    exercise = exercises.get(name)
    grader = importlib.import_module(f"{exercises.__name__}.graders.{exercise.grader}")
    own = beside_reference._own(exercise, grader)
    silent = exercise.place[1] in grader.NO_BANKS
    results, turns = beside_reference._reference(grader, *own[:2], silent)
    same = beside_reference.made_from(grader, own[2], results)
    compiles = {t.made_from: [t.registers, t.spill_bytes, t.smem_bytes] for t in own[2]}
    return compiles | {same: [[turn.taken, turn.least] for turn in turns]}


@pytest.mark.skipif(nvrtc.available() is not None, reason="needs NVRTC")
@pytest.mark.parametrize("name", NAMES)
def test_the_record_is_of_todays_references(name, monkeypatch):
    recorded = tomllib.loads(FILE.read_text())
    monkeypatch.setattr(compiled, "recorded", dict)
    beside_reference._own.cache_clear()
    for made_from, known in found(name).items():
        assert recorded.get(made_from) == known, __doc__


if __name__ == "__main__":
    compiled.recorded = dict
    known = {made_from: row for name in NAMES for made_from, row in found(name).items()}
    rows = [f"# {__doc__.splitlines()[0]}", *(f"{key} = {row}" for key, row in known.items())]
    FILE.write_text("\n".join(rows) + "\n")
