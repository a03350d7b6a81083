"""Judge right and wrong outputs by the call's arguments alone, and grade what is said of a bug."""

import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from labkernels.audit.verdict import verdict
from labkernels.measure.strangers import inputs, wrong

RIGHT_CLASS, WRONG_CLASS, NO_CLASS = "right", "wrong", "none"


@dataclass(frozen=True)
class BugSet:
    """Families of inputs, shapes, right implementations and bugs that belong together.

    wrong: by name, the bug and the classes of labkernels.defects of which one is a right answer.
    asked: what a call must ask for so that a bug shows. keys: of the bugs in one run of keys, the
    first key and the one after the last, counted from the end below 0.
    """

    name: str
    families: Mapping[str, Callable]
    shapes: tuple[inputs.Shape, ...]
    right: Mapping[str, Callable[[inputs.Call], torch.Tensor]]
    wrong: Mapping[str, tuple[wrong.Bug, tuple[str, ...]]]
    asked: Mapping[str, inputs.Asked] = field(default_factory=dict)
    keys: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)

    def call(self, family: str, dtype: str, seed: int, bug: str = "") -> inputs.Call:
        """Return the call of a seed, which takes the shapes in turn, with what a bug needs."""
        shape = self.shapes[seed % len(self.shapes)]
        draw = [seed, zlib.crc32(family.encode())]
        call = inputs.drawn_call(self.families[family], draw, shape, dtype)
        return inputs.asking(call, self.asked[bug]) if bug in self.asked else call


@dataclass(frozen=True)
class Said:
    """What a verdict says of a wrong output, and what is right of that.

    graded: whether one of the classes of the matches is a class of the bug. classes: those of the
    matches, the best first. edit: the best edit. before, after: rms z without it and with it.
    placed: whether the region is that of the wrong rows.
    """

    graded: str = ""
    classes: tuple[str, ...] = ()
    region: str = ""
    edit: str = ""
    before: float | None = None
    after: float | None = None
    placed: bool | None = None


@dataclass(frozen=True)
class Run:
    """One judged output; kind: the implementation or the bug."""

    family: str
    kind: str
    dtype: str
    seed: int
    set: str
    answer: str
    why: str
    seconds: float
    part: str = "all"
    said: Said = Said()


def judged(call: inputs.Call, out, **how):
    """Return the verdict on an output, from the call's tensors and options alone."""
    asked = {
        "causal": call.causal,
        "scale": call.scale,
        "window_left": call.asked.window_left,
        "soft_cap": call.asked.soft_cap,
        "alibi": call.slopes,
        "sinks": call.sinks,
    }
    return verdict(out, call.q, call.k, call.v, layout="bhsd", **asked, **how)


def of_right(families, kinds, dtypes, seeds, of: BugSet) -> Iterator[Run]:
    """Yield the runs of right implementations of a set on families of its inputs."""
    for family in families:
        for seed in seeds:
            for dtype in dtypes:
                call = of.call(family, dtype, seed)
                for kind in kinds:
                    found, spent = _timed(call, of.right[kind](call))
                    yield Run(family, kind, dtype, seed, of.name, found.answer, found.why, spent)


def of_wrong(bug: str, cases: Iterable[tuple[str, str, int, str]], of: BugSet) -> Iterator[Run]:
    """Yield the runs of a bug: cases are (family, dtype, seed, part of the rows).

    There is no run of a case in which the bug changes no bit of the output.
    """
    make, classes = of.wrong[bug]
    for family, dtype, seed, part in cases:
        call = of.call(family, dtype, seed, bug)
        out, good = wrong.run(make, call, part), wrong.run(wrong.right_output, call)
        if out.equal(good):
            continue
        found, spent = _timed(call, out)
        keys = keys_of(of.keys.get(bug), call.k.shape[2])
        said = graded(found, classes, out != good, wrong.rows_of(call, part), keys)
        yield Run(
            family, bug, dtype, seed, of.name, found.answer, found.why, spent, part, said=said
        )


def keys_of(run: tuple[int, int | None] | None, n: int) -> tuple[int, ...] | None:
    """Return the numbers of a run of n keys, None for all.

    >>> keys_of((-2, None), 5), keys_of(None, 5)
    ((3, 4), None)
    """
    return None if run is None else tuple(range(n))[slice(*run)]


def graded(
    found: Any,
    classes: tuple[str, ...],
    changed: torch.Tensor,
    struck: torch.Tensor,
    keys: tuple[int, ...] | None = None,
) -> Said:
    """Return what a verdict says of a wrong output, graded by the bug's label.

    changed: True where the output's bits are wrong. struck: the rows that the bug was put into.
    Shapes: changed [B, Hq, M, Dv], struck [B, Hq, M].
    """
    if found.answer not in ("BUG", "LESS EXACT"):
        return Said()
    kinds = tuple(match.kind for match in found.matches)
    grade = NO_CLASS if not kinds else RIGHT_CLASS if {*kinds} & {*classes} else WRONG_CLASS
    region, best = found.region, found.matches[0] if found.matches else None
    placed = None
    if region is not None:
        placed = any(_is_at(region, rows, keys) for rows in (struck, changed.any(-1)))
    return Said(
        grade,
        kinds,
        region.words if region else "",
        str(best.edit) if best and best.edit else "",
        best.before if best else None,
        best.after if best else None,
        placed,
    )


def _is_at(region: Any, rows: torch.Tensor, keys: tuple[int, ...] | None) -> bool:
    """Return whether a region has the requests, heads and queries of some rows, and the keys."""
    b, h, m = rows.shape
    named = (
        range(b) if region.requests is None else region.requests,
        range(h) if region.heads is None else region.heads,
        range(m) if region.rows is None else range(region.rows[0], region.rows[1] + 1),
    )
    at = tuple({*rows.nonzero()[:, axis].tolist()} for axis in range(3))
    same = all({*a} == b for a, b in zip(named, at, strict=True))
    return same and (keys is None or region.keys is None or {*keys} == {*region.keys})


def _timed(call: inputs.Call, out):
    start = time.perf_counter()
    found = judged(call, out)
    return found, time.perf_counter() - start
