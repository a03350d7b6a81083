"""Names for a bug of a whole kernel: every known mistake is tried on all wrong rows.

Each mistake is also made in float64. The mistake is named if the output differs from that float64
result by rounding alone.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from labkernels.numerics.arrays import ZERO
from labkernels.numerics.verdict.diagnosis.one_row import Match
from labkernels.numerics.verdict.diagnosis.whole_kernel import fitted, grammar, one_rule, sheets
from labkernels.numerics.verdict.diagnosis.whole_kernel.keys import (
    ends,
    intervals,
    key_runs,
    orders,
    some_keys,
    sources,
    weights_of_keys,
)
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.scores import (
    by_head,
    channels,
    exponentials,
    functions,
    positions,
    queries,
)
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet
from labkernels.numerics.verdict.diagnosis.whole_kernel.sums import (
    chains,
    merges,
    precision,
    states,
)

LEFT = 1.5  # rms of z that may be left: rounding gives 1, and the error model is good to 15 %
GAIN = 60.0  # by which sum z^2 must fall: chance gives one number fitted 60 once in 10^14
ALIKE = 0.1  # share of an rms: a smaller difference does not tell two mistakes apart
SURELY = 1e3  # by which a mean of z^2 falls, so that one number fitted leaves no doubt
VAGUE = 0.2  # share of an rms by which a fitted number must be better than a known mistake
_WITHOUT_NUMBERS = (
    *one_rule.ALL,
    *one_rule.LATER,
    *queries.ALL,
    *precision.ALL,
    *precision.LATER,
    *functions.WITHOUT_NUMBERS,
    positions.of_values,
)


def of_some_keys(few: list[Sheet], misfit: fitted.Misfit) -> Iterator[Mistake]:
    """Mistakes without numbers, and rotations, that concern only some keys."""
    known = (mistake for family in _WITHOUT_NUMBERS for mistake in family(few))
    turned = positions.rotations(few)
    yield from some_keys.of_mistakes(few, misfit, itertools.chain(known, turned))


Rounds = tuple[tuple[Callable[..., Iterator[Mistake]], ...], ...]
# A round is tried if those before found nothing but vague numbers.
_ROUNDS: Rounds = (
    one_rule.ALL,
    (
        *precision.ALL,
        *fitted.ALL,
        key_runs.of_range,
        *ends.ALL,
        *fitted.LATER,
        *key_runs.LATER,
        orders.of_offset,
        merges.of_splits,
    ),
    (grammar.of_readings, *states.ALL),
    (
        *exponentials.ALL,
        *orders.ALL[1:],
        *channels.ALL,
        *positions.ALL,
        *weights_of_keys.ALL,
        *chains.ALL,
        *functions.ALL,
        *functions.WITHOUT_NUMBERS,
        positions.of_values,
        *one_rule.LATER,
        *queries.ALL,
        *precision.LATER,
        *by_head.ALL,
        *sources.ALL,
        *intervals.ALL,
    ),
    (of_some_keys,),
    chains.LAST,
)
# What can still be told of errors that coarser arithmetic explains: which arithmetic it is.
_OF_ARITHMETIC: Rounds = (
    (
        *precision.ALL,
        *exponentials.ALL,
        merges.of_splits,
        *chains.ALL,
        *precision.LATER,
        chains.of_weights,
    ),
)
_SAME = 6.0  # fall of sum z^2: a smaller difference does not tell two mistakes apart
_REST = 0.08  # share of what z^2 has beyond 1: weak errors have many explanations of a part
_BETTER = 30.0  # fall of sum z^2 that tells two mistakes apart, in units of the better one's
_FLOOR = 0.05  # rms of z: less is no better, since fp32 is rounded by far less than sigma says
_SHARE = 0.1
_FAR = 1e24  # z^2 of an element that a mistake makes NaN, or worse


@np.errstate(all="ignore")  # a wrong guess may overflow; it is not kept
def explain(found: list[Sheet], out_format: str, *, of_arithmetic: bool = False) -> list[Match]:
    """The mistakes that explain all sheets, the best first; of equals, the one tried first.

    of_arithmetic: try those of the arithmetic alone, a few instead of thousands.
    """
    if not found:
        return []

    def misfit(
        outputs: Callable[..., Any],
        some: list[Sheet] = found,
        noise: Callable[..., Any] | None = None,
    ) -> float:
        total, n = 0.0, 0
        for sheet in some:
            given = outputs(sheet)
            given = sheet.truth if given is None else given
            squares = sheet.squares(given, out_format, noise(sheet) if noise else ZERO)
            total += float(np.where(squares < _FAR, squares, _FAR).sum())
            n += squares.size
        return total / n

    n = sum(sheet.out.size for sheet in found)
    before = misfit(lambda sheet: None)
    if not any(sheet.out.any() for sheet in found):
        return [Match("row never written, or V read as 0", "it is 0", 0.0, math.sqrt(before))]
    few = [sheets.part(sheet, slice(None, None, max(1, len(sheet.tokens) // 6))) for sheet in found]
    kept = []

    def judge(mistake: Mistake) -> None:
        coarse = misfit(mistake.outputs, few, mistake.noise)
        if coarse > 4 * LEFT**2 and coarse > 0.25 * before:
            return
        after = misfit(mistake.outputs, found, mistake.noise)
        if LEFT**2 < after <= 1e-3 * before and mistake.noise is None:
            after = misfit(mistake.outputs, found, lambda sheet: sheet.grown(mistake.outputs))
        if after - 1 > _REST * (before - 1):
            return
        if after <= LEFT**2 and (before - after) * n >= GAIN:
            kept.append((math.sqrt(after), mistake))

    def of_few(outputs: Callable[..., Any], some: list[Sheet] = few) -> float:
        return misfit(outputs, some)

    for families in _OF_ARITHMETIC if of_arithmetic else _ROUNDS:
        for family in families:
            known = family in _WITHOUT_NUMBERS
            for mistake in family(found) if known else family(few, of_few):
                judge(mistake)
        sure = (rms**2 * SURELY <= before for rms, _ in kept)
        if any(not mistake.vague for _, mistake in kept) or any(sure):
            break
    return _ordered(kept, found, math.sqrt(before))


def _ordered(kept: list[tuple[float, Mistake]], found: list[Sheet], was: float) -> list[Match]:
    """The best mistake, and with it those that these rows cannot tell from it."""
    if not kept:
        return []
    n = sum(sheet.out.size for sheet in found)
    best = min(rms + VAGUE * mistake.vague for rms, mistake in kept)

    def rank(pair: tuple[float, Mistake]) -> tuple[float, float]:
        rms, mistake = pair
        off = rms + VAGUE * mistake.vague
        worse = (off**2 - best**2) * n / max(best, _FLOOR) ** 2
        near = worse <= _BETTER or off <= best + ALIKE * _SHARE
        return (best if near else off), mistake.cost

    order = sorted(kept, key=rank)
    rms, first = order[0]
    alike = [
        m for other, m in order[1:] if m.name != first.name and abs(other**2 - rms**2) * n <= _SAME
    ]
    names = list(dict.fromkeys(m.name for m in (first, *alike)))[:3]
    matches = [Match(m.name, m.where, rms, was, m.precision, m.vague) for rms, m in order[:3]]
    if len(names) > 1:
        where = "; or ".join(filter(None, (first.where, alike[0].where)))
        matches[0] = replace(matches[0], name=", or ".join(names), where=where)
        matches[1:] = [match for match in matches[1:] if match.name not in names]
    return matches
