"""Puts the reader's lines in the place of one marked region of a kernel's source."""

import re
from pathlib import Path

from labkernels.chapters.exercises.report import ANSWER
from labkernels.chapters.primers.machine import DECLARES_PRINTF, FOLDER
from labkernels.cuda.compiler import cache
from labkernels.cuda.host.compiler import INCLUDE_DIRS

# A function that ends without its return goes on with whatever code lies behind it.
_STRICT = (
    '#pragma GCC diagnostic push\n#pragma GCC diagnostic error "-Wreturn-type"\n',
    "#pragma GCC diagnostic pop\n",
)


def region(header: str, name: str) -> str:
    """Return the text of a region as the source has it.

    Raises: ValueError unless the source has exactly one region of that name.
    """
    return _parts(header, name)[1]


def declaration(header: str, name: str) -> str:
    """Return the declaration of a struct, with the comment above, as the source has it.

    Raises: ValueError unless the source has exactly one such struct.
    """
    above = r"^(?://[^\n]*\n)*(?:template <[^\n]*> )?"
    struct = rf"{above}struct (?:alignas\(\d+\) )?{name} {{(?:[^\n]*|.*?\n)}};[^\n]*$"
    found = re.findall(struct, _text(header), re.DOTALL | re.MULTILINE)
    if len(found) != 1:
        raise ValueError(f"struct = {name!r}, found {len(found)} times in {header}, allowed: 1")
    return found[0]


def folder_with(
    header: str, name: str, source: str, before_it: str = "", after_it: str = ""
) -> Path:
    """Return an include folder, whose header has the reader's region between these texts.

    The compiler counts the reader's lines from 1, and the others as they stand in the header.
    Raises: ValueError unless the source has exactly one region of that name.
    """
    before, old, after = _parts(header, name)
    before_it += DECLARES_PRINTF if re.search(r"\bprintf\b", source) and "/" not in header else ""
    resumes = before.count("\n") + old.count("\n") + 1
    text = f'{before}{before_it}{_STRICT[0]}#line 1 "{ANSWER}"\n{source.rstrip()}\n{_STRICT[1]}'
    text += f'#line 1 "caller.cuh"\n{after_it}#line {resumes} "{header}"\n{after}'
    return cache.overlay({header: text})


def _text(header: str) -> str:
    path = next(path for root in (FOLDER, *INCLUDE_DIRS) if (path := root / header).exists())
    return path.read_text(encoding="utf-8")


def _parts(header: str, name: str) -> tuple[str, str, str]:
    text = _text(header)
    marked = rf"(?<=// \[lab: {name}\]\n).*(?=// \[/lab: {name}\])"
    found = re.findall(marked, text, re.DOTALL)
    if len(found) != 1:
        raise ValueError(f"region = {name!r}, found {len(found)} times in {header}, allowed: 1")
    before, _, after = text.partition(found[0])
    return before, found[0], after
