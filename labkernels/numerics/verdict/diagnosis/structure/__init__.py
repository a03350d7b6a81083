"""What a wrong output is made of, where no known mistake explains it: a few general fits.

Each fit finds few numbers by many equations: the weight of each key, the block of V that each block
of keys meets, the rows that a row is a sum of. Where a fit leaves only rounding, its numbers show
what went wrong, and the fit puts them into words.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.verdict.diagnosis import places
from labkernels.numerics.verdict.diagnosis.one_row import Match
from labkernels.numerics.verdict.diagnosis.structure import (
    cuts,
    mixtures,
    operands,
    scales,
    scores,
    switched,
    tiles,
    transports,
    weights,
)
from labkernels.numerics.verdict.diagnosis.structure.gathered import gathered
from labkernels.numerics.verdict.diagnosis.structure.late import blends, masks, offsets
from labkernels.numerics.verdict.diagnosis.structure.linear import rms_before

_FAMILIES = (
    operands.of_queries,
    weights.of_weights,
    transports.of_tables,
    switched.of_blocks,
    *scales.ALL,
    cuts.of_rows,
    *operands.ALL[1:],
    scores.of_functions,
    *tiles.ALL,
)
# Sizes, scopes and pairs of all kinds, tried where no family above explains the rows.
_LATE = (*offsets.ALL, *blends.ALL, *tiles.LATE, *masks.ALL)
_OF_CHANNELS = (*tiles.ALL, *tiles.LATE)


@np.errstate(all="ignore")  # a fit that overflows explains nothing
def explain(
    problem: Problem,
    out: Array,
    truth: Array,
    sigma: Array,
    bad: Array,
    p_format: str,
    fmt: str,
    *,
    late: bool = False,
) -> list[Match]:
    """Return the first fit that explains all wrong rows by a name, else all fits by numbers.

    late: the fits are tried that are left to the end.
    """
    found = []
    place = places.words(problem, bad)
    for item, was in _each(problem, out, truth, sigma, bad, p_format, fmt, late):
        where = "; ".join(filter(None, (item.where, place)))
        match = Match(item.name, where, item.rms, was, item.precision, item.vague)
        if not match.vague:
            return [match]
        found.append(match)
    return found


def of_channels(
    problem: Problem,
    out: Array,
    truth: Array,
    sigma: Array,
    bad: Array,
    p_format: str,
    fmt: str,
    channels: Array,
) -> list[Match]:
    """Return the weights of tiles that explain some channels, where others are right."""
    blocks = gathered(problem, out, truth, sigma, bad, p_format, fmt, channels)
    was = rms_before(block.sheet for block in blocks)
    found = (item for family in _OF_CHANNELS for item in family(blocks, was))
    return [Match(item.name, item.where, item.rms, was) for item in found][:1]


def _each(
    problem: Problem,
    out: Array,
    truth: Array,
    sigma: Array,
    bad: Array,
    p_format: str,
    fmt: str,
    late: bool,
) -> Iterator[tuple[Any, ...]]:
    written = bad & (out != 0).any(-1)  # a row that lost all of its keys is 0, whatever the mistake
    bad = written if written.any() else bad
    if not bad.any():
        return
    z = ((out - truth) / np.where(sigma > 0, sigma, np.inf))[bad]
    was = float(np.sqrt((z**2).mean()))
    if not late:
        for found in mixtures.of_rows(problem, out, truth, sigma, bad, fmt):
            yield found, was
    blocks = gathered(problem, out, truth, sigma, bad, p_format, fmt)
    was = rms_before(block.sheet for block in blocks)
    for family in _LATE if late else _FAMILIES:
        for found in family(blocks, was):
            yield found, was
