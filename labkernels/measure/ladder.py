"""Ladders: the kernels of an operation from the plainest up; each rung adds one idea."""

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from labkernels.kernels.kernel import Instance, Kernel
from labkernels.kernels.registry import discover
from labkernels.measure.implementation import with_tile

HEAD_DIM, DECODE_GROUP = 128, 8
_INCLUDE = re.compile(r'\s*#include "(?!lab/)([^"]+)"')
_TAG = re.compile(r"\s*// \[(/?)(rung|lab): (.*)\]")
_GUARD = "#pragma once"
# Lines that a file needs besides its code, and the constraints that choose the functions of a rung.
_FRAME = re.compile(r"#include|using namespace|namespace|}  // namespace|  requires \(C::rung ")


@dataclass(frozen=True)
class Rung:
    """A kernel and a tile that add one idea to the rung below, their parent.

    passages: the parts of the kernel's sources between tags `[rung: ...]` that belong to this rung.
    tensor_cores: whether its products run on tensor cores.
    """

    name: str
    kernel: str
    tile: str
    idea: str
    passages: tuple[str, ...] = ()
    tensor_cores: bool = True

    @property
    def operation(self) -> str:
        """The operation of its kernel."""
        return discover()[self.kernel].operation

    @property
    def spec(self) -> Kernel:
        """The kernel as if the rung's tile were its only one."""
        return with_tile(self.kernel, self.tile, HEAD_DIM)

    @property
    def instance(self) -> Instance:
        """The variant that is compiled for the rung: bf16, and ragged if the kernel allows that."""
        spec = self.spec
        group = DECODE_GROUP if self.operation == "decode" else 1
        layout = "ragged" if "ragged" in spec.layouts else spec.layouts[0]
        return spec.instance(spec.shape(head_dim=HEAD_DIM, group=group, layout=layout))

    @property
    def source(self) -> list[str]:
        """The lines of its header and of what that includes, without lab/ and other rungs."""
        spec: Any = self.spec
        header = spec.specialization(self.instance).header
        return list(_source(spec.folder.parent.parent, header, self.passages))


@dataclass(frozen=True)
class Difference:
    """How many lines of code a rung adds to its parent, and how many it removes.

    text: the difference with context and comments, for a reader.
    """

    added: int
    removed: int
    text: str


def _rung(passages: Iterable[str] = (), **facts: Any) -> Rung:
    return Rung(**facts, passages=tuple(passages))


_TEXT = Path(__file__).with_name("ladders.toml").read_text(encoding="utf-8")
_LADDERS = {name: [_rung(**facts) for facts in of] for name, of in tomllib.loads(_TEXT).items()}


def operations() -> tuple[str, ...]:
    """The operations that have a ladder."""
    return tuple(_LADDERS)


def rungs(operation: str) -> list[Rung]:
    """The rungs of an operation, lowest first.

    Raises: ValueError naming the operations that have a ladder.

    >>> [rung.name for rung in rungs("decode")]
    ['CUDA cores', 'mma.sync', '8 query columns']
    """
    if operation not in _LADDERS:
        raise ValueError(f"operation = {operation!r}, allowed: {', '.join(_LADDERS)}")
    return list(_LADDERS[operation])


def parent_of(rung: Rung) -> Rung | None:
    """The rung below, or None."""
    ladder = _LADDERS[rung.operation]
    place = ladder.index(rung)
    return ladder[place - 1] if place else None


def difference(rung: Rung) -> Difference | None:
    """How a rung's sources differ from its parent's; None for the lowest.

    The counts are of code: comments, blank lines and lines that match _FRAME do not count, and the
    names of the two kernels count as the same word.
    """
    parent = parent_of(rung)
    if parent is None:
        return None
    signs = [line[0] for line in _changed(_code(parent), _code(rung))]
    shown = difflib.unified_diff(
        parent.source, rung.source, parent.name, rung.name, n=2, lineterm=""
    )
    return Difference(signs.count("+"), signs.count("-"), "\n".join(shown))


@cache
def _source(root: Path, header: str, passages: tuple[str, ...]) -> tuple[str, ...]:
    """Return the lines. A rung's passages stand together, where the first of any rung stood."""
    shared, tagged, within, place = [], {}, None, None
    for line in _with_includes(root, header, set()):
        tag = _TAG.match(line)
        if tag and tag[2] == "rung":
            place = len(shared) if place is None else place
            within = None if tag[1] else tag[3]
        elif not tag:
            (shared if within is None else tagged.setdefault(within, [])).append(line)
    own = [line for name in passages for line in (*tagged[name], "")]
    kept = [*shared[:place], *own, *shared[place:]] if own else shared
    # the passages that are left out stood between empty lines: keep one of two in succession
    return tuple(line for line, above in zip(kept, ["", *kept], strict=False) if line or above)


def _with_includes(root: Path, file: str, seen: set[str]) -> Iterator[str]:
    """Yield the lines of the files that a file includes, each file once, and then its own."""
    if file in seen:
        return
    seen.add(file)
    lines = (root / file).read_text().splitlines()
    for line in lines:
        if include := _INCLUDE.match(line):
            yield from _with_includes(root, include[1], seen)
    # the comment above the guard describes the file, and belongs to no rung
    yield from (line for line in lines[lines.index(_GUARD) + 1 :] if not _FRAME.match(line))


def _code(rung: Rung) -> list[str]:
    bare = (re.sub(r"\s*//.*", "", line).rstrip() for line in rung.source)
    return [line.replace(rung.kernel, "kernel") for line in bare if line]


def _changed(before: list[str], after: list[str]) -> list[str]:
    lines = difflib.unified_diff(before, after, n=0, lineterm="")
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]
