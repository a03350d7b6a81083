"""The report of `check`, and how the CPU machine's messages refer to the reader's lines."""

import re
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path

from labkernels.chapters.primers.machine import FOLDER

ANSWER = "your_answer.cuh"  # the file that the reader's lines seem to come from
NAMES = "Has your answer all the names of the starter, and does every bracket in it close?"
_PLACE = re.compile(rf"(?:[\w./-]*/)?{re.escape(ANSWER)}:(\d+)")
# A message keeps the last folder of a path: the primers', or the build's if `#line` has no folder.
# The machine's own messages name a primer without its folder.
_IN_PRIMER = re.compile(rf"(?<![\w/])(?:(?:{FOLDER.name}|kernels|labkernels)/)?(\w+\.cuh):(\d+)")
_COMPILE = re.compile(rf"{re.escape(ANSWER)}:(\d+):(\d+): error: ([^\n]*)")
_COMPILE_BESIDE = re.compile(r"((?:[\w-]+/)*\w+\.cuh:\d+):\d+: error: ([^\n]*)")
_SAID = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_NO_PRINTF = "printf has no place here: `check` shows what is wrong."
_SHOWN = 12  # lines of printf
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_UNKNOWN = re.compile(
    r".(\w+). was not declared|undeclared identifier '(\w+)'|.(\w+). does not name a type"
)
_HOST_WORD = re.compile(r"; did you mean .lab::host::[\w:]+.\?")
_QUOTED = re.compile(r"line (\d+) of (\w+\.cuh), `")
_FUNCTION = re.compile(r"\bLAB_DEVICE\s+[\w:]+\s+(\w+)\s*\(")
_ANY_FUNCTION = re.compile(r"^LAB_(?:DEVICE [\w:&]+|KERNEL\([^)]*\)) (\w+)\(", re.MULTILINE)
_NEGATIVE = re.compile(r"\([^()]*\w\s*-\s*\w[^()]*\)\s*%")
_REMAINDER = (
    "Line {}: in C the remainder of a negative number is negative: -1 % 8 is -1. Add the divisor "
    "first."
)


@dataclass(frozen=True)
class Report:
    """Whether an answer is right, and what there is to say about it, line by line."""

    passed: bool
    lines: tuple[str, ...]

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return "\n".join(("Right." if self.passed else "Not yet.", *map(wrapped, self.lines)))


def wrapped(line: str) -> str:
    """Break a line of prose into lines of at most 90 columns; leave a line of a table.

    JupyterLab breaks a line that is too long in the middle of a word.
    """
    if "  " in line:
        return line
    return textwrap.fill(line, 90, break_long_words=False, break_on_hyphens=False)


def fault_of(message: str) -> str:
    """Return the name of a machine error: "compile" for a compiler's, "" for an unknown one."""
    if _COMPILE.search(message):
        return "compile"
    faults = _SAID["faults"].items()
    return next((name for name, of in faults if any(w in message for w in of["words"])), "")


def in_readers_words(message: str) -> list[str]:
    """Return a machine error as sentences about the reader's own lines."""
    errors = _COMPILE.findall(message)
    if errors:
        said = (f"Line {line}, column {column}: {text}" for line, column, text in errors)
        return list(dict.fromkeys(_with_lab_word(line) for line in said))[:3]
    if beside := _COMPILE_BESIDE.search(message):
        place = _IN_PRIMER.sub(_quoted, beside[1].rpartition("/kernels/")[2])
        return [
            f"The kernel does not compile with your answer in it: {beside[2]}, at {place}.",
            NAMES,
        ]
    what = message.partition(": ")[2] if "::" in message.partition(": ")[0] else message
    what = _IN_PRIMER.sub(_quoted, _PLACE.sub(r"line \1 of your answer", what.strip()))
    lines = what.splitlines()
    if name := fault_of(message):
        lines = [_SAID["faults"][name]["says"], *lines] if name in _SAID["faults"] else lines
    return lines


def _with_lab_word(line: str) -> str:
    """Return a compiler's error, with the lab's word if it does not know a word of CUDA."""
    found = _UNKNOWN.search(line)
    if "inlining failed" in line:
        return f"{line}. Functions are inlined, so that none may call itself, even by another one"
    lab = _SAID["lab_words"].get(next(filter(None, found.groups()))) if found else None
    return _HOST_WORD.sub("", line) + (f"; the lab's word is `{lab}`" if lab else "")


def _quoted(place: re.Match) -> str:
    """Return a line of a primer's kernel: its number and its code."""
    path = FOLDER / place[1]
    if not path.exists():
        return place[0]
    code = path.read_text(encoding="utf-8").splitlines()[int(place[2]) - 1].partition("//")[0]
    return f"line {place[2]} of {place[1]}, `{code.strip()}`"


def refused(answer: str, *, prints: bool = True) -> str:
    """Return why lines of CUDA are not run, such as a macro or recursion.

    prints: whether the lines may use printf.
    """
    code = _COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), answer)
    no_printf = [] if prints else [{"pattern": r"printf\b", "why": _NO_PRINTF}]
    for each in _SAID["refused"] + no_printf:
        if found := re.search(each["pattern"], code):
            return f"Line {_line(code, found.start())}: {each['why']}"
    functions = [*_FUNCTION.finditer(code)]
    for one, after in zip(functions, [*functions[1:], None], strict=False):
        body = code[one.end() : after.start() if after else None]
        if found := re.search(rf"\b{one[1]}\s*\(", body):
            where = _line(code, one.end() + found.start())
            return f"Line {where}: {one[1]} calls itself, and a kernel's functions are inlined."
    return ""


def of_printf(printed: list[str]) -> list[str]:
    """Return what an answer printed, at most a few lines of it."""
    more = len(printed) - _SHOWN
    lines = [f"printf: {line}" for line in printed[:_SHOWN]]
    return [*lines, f"printf: and {more:,} more lines."] if more > 0 else lines


def in_own_lines(answer: str, lines: list[str]) -> list[str]:
    """Return what a fault behind the reader's lines has to do with them: a call, or a value."""
    if any("of your answer" in line for line in lines):
        return []
    places = [place for line in lines for place in _QUOTED.findall(line)]
    names = dict.fromkeys(_function_at(FOLDER / header, int(line)) for line, header in places)
    said = []
    for name in filter(None, names):
        called = [_line(answer, at.start()) for at in re.finditer(rf"\b{name}\s*\(", answer)]
        where = ", ".join(map(str, called))
        said += [f"Your answer calls `{name}`, where this is, in line {where}."] if called else []
    values = [*re.finditer(r"\breturn\b", answer)]
    if said or not values:
        return said
    at = _line(answer, values[-1].start())
    return [f"That place uses what your lines return, in line {at} of your answer."]


def _function_at(path: Path, line: int) -> str:
    """Return the name of the function of a primer's kernel in which a line stands."""
    above = path.read_text(encoding="utf-8").splitlines()[:line] if path.exists() else []
    names = _ANY_FUNCTION.findall("\n".join(above))
    return names[-1] if names else ""


def negative_remainder(answer: str) -> list[str]:
    """Return a line on the first remainder of a difference."""
    found = _NEGATIVE.search(answer)
    return [_REMAINDER.format(_line(answer, found.start()))] if found else []


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1
