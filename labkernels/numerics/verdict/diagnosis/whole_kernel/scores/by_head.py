"""Numbers that differ by head, sample or query, such as a scale or a slope.

Each group's number is fitted to its own rows alone, all groups at once.
Functions take sheets and a misfit, as those of `fitted` do.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import CLEARLY, Misfit
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet
from labkernels.units import LOG2_E

_LISTED = 8
_GOLDEN = (5**0.5 - 1) / 2
_STEPS = 36  # of a golden section
_SLOPES = np.geomspace(1e-4, 4, 20)


@dataclass(frozen=True)
class _Way:
    """How a number x changes scores. grid: the numbers tried first; shown: x in words."""

    name: str
    words: str
    change: Callable[..., Any]
    grid: np.ndarray
    shown: Callable[[float], float] = float
    is_scale: bool = False


def _distance(sheet: Sheet) -> Array:
    return np.arange(sheet.kv_len)[None] - sheet.places


_WAYS = (
    _Way(
        "wrong scale, another for each {}",
        "scores times",
        lambda sheet, x: np.exp(x) * sheet.scores,
        np.log(np.geomspace(0.1, 10, 31)),
        math.exp,
        is_scale=True,
    ),
    _Way(
        "ALiBi that was not asked for, another for each {}",
        "slopes",
        lambda sheet, x: sheet.scores + LOG2_E * x * _distance(sheet),
        np.concatenate([-_SLOPES[::-1], [0.0], _SLOPES]),
    ),
    _Way(
        "bias by the logarithm of the distance, another for each {}",
        "times",
        lambda sheet, x: sheet.scores + LOG2_E * x * np.log1p(np.abs(_distance(sheet))),
        np.linspace(-3, 3, 25),
    ),
)


def _of_head(sheet: Sheet) -> Array:
    return sheet.heads


def _of_sample(sheet: Sheet) -> Array:
    return np.full(len(sheet.heads), sheet.request)


def _of_query(sheet: Sheet) -> Array:
    return sheet.queries


_LABELS = {"sample": _of_sample, "head": _of_head, "query": _of_query}


def of_each(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Scores have another number for each head, sample or query."""
    before = misfit(lambda sheet: None)
    for what, label in _LABELS.items():
        groups = np.unique(np.concatenate([label(sheet) for sheet in sheets]))
        if len(groups) < 2 and what != "head":
            continue
        for way in _WAYS:
            numbers = _least(sheets, way, label, groups)
            told = ", ".join(f"{way.shown(x):.5g}" for x in numbers[:_LISTED])
            of = ", ".join(map(str, groups[:_LISTED].tolist()))
            more = ", ..." * (len(groups) > _LISTED)
            where = f"{way.words} {told}{more} for {what} {of}{more}"
            outputs = _changed(way, label, groups, numbers)
            if misfit(outputs, limit=before / CLEARLY) * CLEARLY <= before:
                yield Mistake(
                    way.name.format(what),
                    where,
                    outputs,
                    vague=True,
                    like_scale=way.is_scale,
                    for_each=True,
                )


def _changed(
    way: _Way, label: Callable[..., Any], groups: Array, numbers: Array
) -> Callable[..., Any]:
    def outputs(sheet: Sheet) -> Array:
        own = label(sheet)
        if not np.isin(own, groups).all():
            own = groups[np.abs(own[:, None] - groups).argmin(1)]
        each = numbers[np.searchsorted(groups, own)]
        return sheet.attend(way.change(sheet, each[:, None]))

    return outputs


def _least(sheets: list[Sheet], way: _Way, label: Callable[..., Any], groups: Array) -> np.ndarray:
    """Return the number with which each group fits best, by a grid and a golden section."""

    def squares(numbers: Array) -> np.ndarray:
        total = np.zeros(len(groups))
        for sheet in sheets:
            own = np.searchsorted(groups, label(sheet))
            out = sheet.attend(way.change(sheet, numbers[own][:, None]))
            miss = (((sheet.out - out) / sheet.sigma) ** 2).sum(1)
            total += np.bincount(own, np.where(np.isfinite(miss), miss, 1e300), len(groups))
        return total

    grid = way.grid
    i = np.stack([squares(np.full(len(groups), x)) for x in grid]).argmin(0)
    low, high = grid[np.maximum(i - 1, 0)], grid[np.minimum(i + 1, len(grid) - 1)]
    a, b = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_a, at_b = squares(a), squares(b)
    for _ in range(_STEPS):
        left = at_a < at_b
        low, high = np.where(left, low, a), np.where(left, b, high)
        new = np.where(left, high - _GOLDEN * (high - low), low + _GOLDEN * (high - low))
        at_new = squares(new)
        a, at_a, b, at_b = (
            np.where(left, new, b),
            np.where(left, at_new, at_b),
            np.where(left, a, new),
            np.where(left, at_a, at_new),
        )
    return (low + high) / 2


ALL = (of_each,)
