"""decode_mma with bugs that the reader can switch on: the module of the stepper."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkernels.kernels.operation import BitCase
from labkernels.measure.mutants import decode as registry
from labkernels.measure.mutants.mutant import Edit
from labkernels.widgets.steps.stepped import DECODE_MMA

NAME = "broken"  # of the asset
KERNEL = DECODE_MMA.kernel
_SWITCH = """extern "C" { int lab_off = 0; \
__attribute__((export_name("lab_take_out"))) void lab_take_out(int n) { lab_off = n; } } \
""".replace("\\\n", "")
_IS_OFF = '({{ extern int off __asm__("lab_off"); off == {}; }})'


@dataclass(frozen=True)
class Part:
    """A bug that can be switched on: what the page calls it, and its place.

    pattern: has one match in the file; the match becomes `by` while the condition OFF holds.
    source: where a bug like it was reported. typed: the bug as a reader would type it.
    """

    words: str
    file: str
    pattern: str
    by: str
    typed: Edit
    source: str = ""

    @property
    def edit(self) -> Edit:
        """The kernel in which the bug is always on."""
        return Edit(self.file, self.pattern, self.by.replace("OFF", "true"))


def _part(
    file: str,
    pattern: str,
    by: str = r"if (!OFF) \1",
    *,
    missing: str = "",
    outside: str = "",
    known: str = "",
) -> Part:
    """Return a bug of the table: a statement that is missing, a count, or one of the registry."""
    if missing:
        return Part(f"Left out: {missing}", file, pattern, by, Edit(file, pattern, ""))
    if outside:
        typed = Edit(file, pattern, by.replace("OFF", "1"))
        return Part(f"Out of bounds: {outside}", file, pattern, by, typed)
    mutant = registry.MUTANTS[known]
    return Part(f"Wrong: {mutant.bug}", file, pattern, by, mutant.edits[KERNEL], mutant.source)


_FILE = Path(__file__).with_suffix(".toml")
PARTS = tuple(_part(**row) for row in tomllib.loads(_FILE.read_text(encoding="utf-8"))["part"])


def case() -> BitCase:
    """Return the launch of the kernel in which PARTS[n] is on while lab_off is n + 1."""
    edits = [
        Edit(part.file, part.pattern, part.by.replace("OFF", _IS_OFF.format(number)))
        for number, part in enumerate(PARTS, 1)
    ]
    return DECODE_MMA.case(edits, also=_SWITCH)


def asset() -> dict[str, Any]:
    """Return what a stepper needs of the kernel, and its parts."""
    parts = [{"words": part.words, "source": part.source} for part in PARTS]
    return {**DECODE_MMA.asset(case()), "parts": parts}
