"""Where machine code keeps the most registers live, and what these registers hold there."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from labkernels.cuda.compiler import sass

_LINE = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?P<text>.*?)\s*;?\s*// (?P<columns>.*)$")
_PREDICATE = re.compile(r"^@!?U?P\w+\s+")
_REGISTER = re.compile(r"\bR(\d+)\b")
_LOADS = ("LDSM", "LDS", "LDG", "LDC", "LD")
_MEMORY = ("LDSM", "LDS", "LDG", "STS", "STG", "LDGSTS", "ATOM", "RED")
WRITTEN, BOTH, READ = "^", "x", "v"  # marks of the disassembler; ":" is alive and not touched


@dataclass(frozen=True)
class Instruction:
    """An instruction, and the mark of each register that is alive at it."""

    text: str
    marks: dict[int, str]

    @property
    def name(self) -> str:
        """The operation without modifiers: HMMA of HMMA.16816.F32."""
        return _PREDICATE.sub("", self.text).partition(" ")[0].partition(".")[0]


@dataclass(frozen=True)
class Widest:
    """The instruction at which most registers are live, and how many serve each use.

    uses: "sums" of a product, "operands" that wait for one, "loads" of other values, "addresses"
    and "other": what is kept across the loop, and scalars.
    """

    instruction: str
    alive: int
    uses: dict[str, int]


def widest(cubin: bytes) -> Widest:
    """Find the point of a file's one kernel with most live registers, and sort them by their use.

    The instructions that write and next read a register, in the order of the listing, say what it
    is used for. A value that a loop carries round its end counts as other.
    Raises: RuntimeError if there is no disassembler, or it refuses the kernel, as one of all 255
    registers.
    """
    listing = instructions(cubin)
    at = max(range(len(listing)), key=lambda i: len(listing[i].marks))
    uses = Counter(_use(listing, at, register) for register in listing[at].marks)
    return Widest(listing[at].text, len(listing[at].marks), dict(uses.most_common()))


def instructions(cubin: bytes) -> list[Instruction]:
    """Return the instructions of a file with the registers that are alive at each.

    Raises: RuntimeError as `widest` does.
    """
    found, places = [], []
    for line in _listing(cubin).splitlines():
        columns = line.partition("// ")[2]
        if not places and re.search(r"\| +# 0 1 2", columns):
            numbers = re.finditer(r"\d+", columns.split("|")[1])
            places = [number.end() - 1 for number in numbers]
        elif places and (match := _LINE.match(line)):
            marks = match["columns"].split("|")[1]
            alive = {r: marks[x] for r, x in enumerate(places) if marks[x : x + 1].strip()}
            found.append(Instruction(match["text"], alive))
    if not found:
        raise RuntimeError("the disassembler shows no live registers of this kernel")
    return found


def _use(listing: list[Instruction], at: int, register: int) -> str:
    writer = _writer(listing, at, register)
    readers = [listing[i] for i in _reads(listing, at, register)]
    if any(_is_sum(each, register) for each in readers) or "MMA" in writer:
        return "sums"
    if any("MMA" in each.name for each in readers):
        return "operands"
    if any(_is_address(each, register) for each in readers):
        return "addresses"
    return "loads" if writer in _LOADS else "other"


def _writer(listing: list[Instruction], at: int, register: int) -> str:
    """Return the name of the instruction that wrote the register, or ""."""
    for i in range(at, -1, -1):
        mark = listing[i].marks.get(register)
        if mark is None:
            break
        if mark == WRITTEN or (mark == BOTH and i < at):
            return listing[i].name
    return ""


def _reads(listing: list[Instruction], at: int, register: int) -> list[int]:
    """Return where the value in the register is read, from the widest point on."""
    found = []
    for i in range(at, len(listing)):
        mark = listing[i].marks.get(register)
        if mark is None or (mark == WRITTEN and i > at):
            break
        if mark in (READ, BOTH):
            found.append(i)
        if mark == BOTH and i > at:
            break
    return found


def _is_sum(instruction: Instruction, register: int) -> bool:
    """Return whether a product adds to the register: its last operand, four registers wide."""
    last = instruction.text.rpartition(",")[2]
    first = _REGISTER.search(last)
    return (
        "MMA" in instruction.name
        and first is not None
        and int(first[1]) <= register < int(first[1]) + 4
    )


def _is_address(instruction: Instruction, register: int) -> bool:
    inside = re.search(r"\[([^]]*)\]", instruction.text)
    numbers = [int(x) for x in _REGISTER.findall(inside[1])] if inside else []
    return instruction.name in _MEMORY and any(register - x in (0, 1) for x in numbers)


def _listing(cubin: bytes) -> str:
    if (reason := sass.available()) is not None:
        raise RuntimeError(reason)
    tool = Path(sass.disassembler()).with_name("nvdisasm")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "-plr", "-c", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not done.stdout:
        raise RuntimeError(f"{tool} refuses the kernel: {(done.stderr or done.stdout).strip()}")
    return done.stdout
