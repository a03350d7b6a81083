"""Judge right and wrong outputs by the call's arguments alone, and check the name of each bug."""

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from labkernels.audit.verdict import verdict
from labkernels.measure.strangers import inputs, split, wrong
from labkernels.measure.strangers.held_out import inputs as new_inputs

RIGHT_NAME, WRONG_NAME, NO_NAME = "right", "wrong", "none"
ALTERNATIVE, MOST_LISTED = ", or ", 3


@dataclass(frozen=True)
class Run:
    """One judged output.

    kind: the implementation or the bug. named: whether the name of a found bug is right. listed:
    how many names the first line of the diagnosis lists.
    """

    family: str
    kind: str
    dtype: str
    seed: int
    set: str
    answer: str
    why: str
    seconds: float
    part: str = "all"
    named: str = ""
    listed: int = 0


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


def shape_of(seed: int) -> inputs.Shape:
    """Return the shape of a seed: each seed takes the next one, a held-out seed a held-out one."""
    shapes = new_inputs.SHAPES if seed >= split.FIRST_HELD_OUT_SEED else inputs.SHAPES
    return shapes[seed % len(shapes)]


def named(name: str, pattern: str) -> str:
    """Return whether a name is right: one of the at most three names that it lists matches.

    A longer list does not tell a reader where to look. It counts as no name, even with a match.

    >>> named("wrong scale, or V by a factor", "scale"), named("wrong scale", "mask")
    ('right', 'wrong')
    >>> named("a, or b, or c, or d", "d")
    'none'
    """
    listed = name.split(ALTERNATIVE)
    if not any(re.search(pattern, each) for each in listed):
        return WRONG_NAME
    return RIGHT_NAME if len(listed) <= MOST_LISTED else NO_NAME


def of_right(families, kinds, dtypes, seeds) -> Iterator[Run]:
    """Yield the runs of right implementations."""
    for family in families:
        for seed in seeds:
            for dtype in dtypes:
                call = split.call(family, shape_of(seed), dtype, seed)
                for kind in kinds:
                    found, spent = _timed(call, split.RIGHT[kind](call))
                    of = split.of(family, kind)
                    yield Run(family, kind, dtype, seed, of, found.answer, found.why, spent)


def of_wrong(bug: str, cases: Iterable[tuple[str, str, int, str]]) -> Iterator[Run]:
    """Yield the runs of a bug: cases are (family, dtype, seed, part of the rows).

    There is no run of a case in which the bug changes no bit of the output.
    """
    make, pattern = split.WRONG[bug]
    for family, dtype, seed, part in cases:
        call = split.call(family, shape_of(seed), dtype, seed)
        call = split.asking(call, bug)
        out = wrong.run(make, call, part)
        if out.equal(wrong.run(wrong.right_output, call)):
            continue
        found, spent = _timed(call, out)
        said, listed = "", 0
        if found.answer in ("BUG", "LESS EXACT"):
            said = NO_NAME
            if found.matches:
                said = named(found.matches[0].name, pattern)
                listed = len(found.matches[0].name.split(ALTERNATIVE))
        of = split.of(bug)  # a bug that was looked at is not held out, even on held-out inputs
        run = Run(family, bug, dtype, seed, of, found.answer, found.why, spent, part, said, listed)
        yield run


def _timed(call: inputs.Call, out):
    start = time.perf_counter()
    found = judged(call, out)
    return found, time.perf_counter() - start
