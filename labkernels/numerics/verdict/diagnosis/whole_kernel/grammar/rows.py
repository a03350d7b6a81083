"""Readings whose keys differ from row to row.

A row has as many equations as channels, so that a run of keys can be found for each.
"""

from collections.abc import Iterator

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.grammar import readings
from labkernels.numerics.verdict.diagnosis.whole_kernel.grammar.scopes import Nearest, Screen
from labkernels.numerics.verdict.diagnosis.whole_kernel.grammar.terms import (
    Reading,
    joined,
)
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet, part

_LEFT = 4.0  # mean z^2 up to which a row counts as explained
_MOST = 4  # rows in which a reading is tried before it is given up
_SHOWN = 3
_REACH = 6  # least directions in which the keys of a row move it: with fewer, any run would do
_CHANNELS = 16  # least equations that determine a run of keys


def of_runs(sheets: list[Sheet], limit: float) -> Iterator[Mistake]:
    """Each row reads a run of keys of its own wrongly."""
    if sheets[0].out.shape[1] < _CHANNELS:
        return
    some = _spread(sheets)
    if not some or np.median([s.reach[0] for s in some]) < _REACH:
        return
    for reading in _tried(sheets[0]):
        found = []
        for sheet in some:
            near = _run_of(sheet, reading, limit)
            if near is None or near.miss > limit:
                break
            found.append((sheet, near))
        if len(found) < len(some):
            continue
        told = ", ".join(
            f"{_row(sheet)}: {near.scope.words or 'all'}" for sheet, near in found[:_SHOWN]
        )
        yield Mistake(
            f"{reading.name}, other keys in each row",
            f"{told}, ...",
            lambda sheet, r=reading: _outputs(sheet, r),
            reading.precision,
            cost=reading.cost + 4.0,
        )


def _tried(sheet: Sheet) -> Iterator[Reading]:
    for reading in readings.of_scores(sheet):
        if "mask" in reading.name or "hidden" in reading.name:
            yield reading
    for reading in readings.of_weights(sheet):
        # for any factor on a row some run of keys would fit
        if reading.name != readings.IN_DENOMINATOR:
            yield Reading(reading.name, "", reading.of, reading.cost)
    for reading in readings.of_operands(sheet):
        if reading.cost <= 1.0:
            yield reading


def _spread(sheets: list[Sheet]) -> list[Sheet]:
    """Return some wrong rows of several sheets."""
    found = []
    for sheet in sheets:
        n = len(sheet.tokens)
        places = np.unique(np.linspace(0, n - 1, _MOST).astype(int))
        found += [part(sheet, slice(i, i + 1)) for i in places.tolist()]
    wrong = [s for s in found if (((s.out - s.truth) / s.sigma) ** 2).mean() > 9]
    step = max(1, len(wrong) // _MOST)
    return wrong[::step][:_MOST]


def _row(sheet: Sheet) -> str:
    return sheet.problem.row_name(int(sheet.tokens[0]), int(sheet.heads[0]))


def _run_of(sheet: Sheet, reading: Reading, limit: float = np.inf) -> Nearest | None:
    near = Screen([sheet]).nearest(reading.of, limit=limit)
    return min(near, key=lambda one: (one.miss > _LEFT, one.scope.cost, one.miss), default=None)


def _outputs(sheet: Sheet, reading: Reading) -> Array:
    found = sheet.truth.copy()
    for i in range(len(sheet.tokens)):
        row = part(sheet, slice(i, i + 1))
        near, terms = _run_of(row, reading), reading.of(row)
        if near is None or terms is None:
            continue
        some = np.broadcast_to(near.scope.of(sheet.kv_len), row.weights.shape)
        given = joined(row, terms, some)
        off = [(((row.out - x) / row.sigma) ** 2).mean() for x in (given, row.truth)]
        found[i] = (given if off[0] < off[1] else row.truth)[0]
    return found
