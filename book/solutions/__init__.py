"""The solutions of the assignments, for teachers and tests: no wheel has this package."""

import functools
import tomllib
from pathlib import Path

from labkernels.chapters import exercises
from labkernels.chapters.exercises.overlay import region


@functools.cache
def solution(name: str) -> str:
    """Returns the solution of an assignment: often the kernel's own lines."""
    known = tomllib.loads(Path(__file__).with_name("solutions.toml").read_text(encoding="utf-8"))
    return known[name] if name in known else region(*exercises.get(name).place)
