"""Judge right and wrong outputs without further facts, and check the name of each bug."""

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from labkernels.audit.verdict import verdict
from labkernels.measure.strangers import inputs, split, wrong

RIGHT_NAME, WRONG_NAME, NO_NAME = "right", "wrong", "none"


@dataclass(frozen=True)
class Run:
    """One judged output. kind: the implementation or the bug; named: of a bug that was found."""

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


def judged(call: inputs.Call, out, **how):
    """The verdict on an output of a call, told nothing but the tensors and the mask."""
    return verdict(out, call.q, call.k, call.v, causal=call.causal, scale=call.scale, **how)


def shape_of(seed: int) -> inputs.Shape:
    """A shape for each seed, in turn."""
    return inputs.SHAPES[seed % len(inputs.SHAPES)]


def of_right(families, kinds, dtypes, seeds) -> Iterator[Run]:
    """The runs of right implementations."""
    for family in families:
        for seed in seeds:
            for dtype in dtypes:
                call = split.call(family, shape_of(seed), dtype, seed)
                for kind in kinds:
                    found, spent = _timed(call, split.RIGHT[kind](call))
                    of = split.of(family, kind)
                    yield Run(family, kind, dtype, seed, of, found.answer, found.why, spent)


def of_wrong(bug: str, cases: Iterable[tuple[str, str, int, str]]) -> Iterator[Run]:
    """The runs of a bug: cases are (family, dtype, seed, part of the rows).

    A bug that changes no bit of the output gives no run, since it cannot be seen.
    """
    make, pattern = split.WRONG[bug]
    for family, dtype, seed, part in cases:
        call = split.call(family, shape_of(seed), dtype, seed)
        out = wrong.run(make, call, part)
        if out.equal(wrong.run(_right, call)):
            continue
        found, spent = _timed(call, out)
        named = ""
        if found.answer in ("BUG", "LESS EXACT"):
            named = NO_NAME
            if found.matches:
                named = RIGHT_NAME if re.search(pattern, found.matches[0].name) else WRONG_NAME
        of = split.of(bug)  # new inputs alone do not make a bug that was looked at a new one
        yield Run(family, bug, dtype, seed, of, found.answer, found.why, spent, part, named)


def _right(work: wrong.Work):
    return wrong.attend(work.s, work.v, work.call.q.dtype)


def _timed(call: inputs.Call, out):
    start = time.perf_counter()
    found = judged(call, out)
    return found, time.perf_counter() - start
