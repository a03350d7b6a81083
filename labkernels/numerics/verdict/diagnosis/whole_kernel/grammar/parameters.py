"""Wrong readings with one number, which is fitted: clips, caps, thresholds, factors."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.grammar.terms import (
    by_keys,
    by_masked,
    by_scores,
    by_values,
)
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet
from labkernels.units import LOG2_E

_QUANTILES = (0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.87, 0.92, 0.96, 0.98, 0.99, 0.996, 0.999)
_NEARLY = 2e-3  # relative distance from a round number


@dataclass(frozen=True, eq=False)
class Family:
    """Readings with a number x. grid: the numbers tried first; where: x in words."""

    name: str
    where: str
    of: Callable[..., Any]
    grid: Callable[[list[Sheet]], Array]
    cost: float = 2.0


def _of_sizes(which: str) -> Callable[[list[Sheet]], Array]:
    def grid(sheets: list[Sheet]) -> Array:
        if which == "q":
            parts = [np.abs(s.q / _unit(s)).ravel() for s in sheets]
        else:
            parts = [np.abs(getattr(s, which)).ravel() for s in sheets]
        return np.unique(np.quantile(np.concatenate(parts), _QUANTILES))

    return grid


def _unit(sheet: Sheet) -> float:
    return sheet.problem.scale * LOG2_E


def _of_scores(sheets: list[Sheet]) -> Array:
    seen = np.concatenate([s.raw[~s.hidden] for s in sheets]) / LOG2_E
    return np.unique(np.quantile(seen, (0.002, 0.01, 0.03, *_QUANTILES)))


def _fixed(*numbers: float) -> Callable[[list[Sheet]], Array]:
    return lambda sheets: np.array(numbers)


def _bent(s: Array, c: float) -> Array:
    return s / (1 + np.abs(s) / c)


_ADDED = [sign * x for x in (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6) for sign in (1, -1)]
_CAPS = _fixed(0.3, 0.5, 0.7, 1, 1.4, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 64, 100)
SCALE = Family(
    "wrong scale",
    "scores times {:.5g}",
    lambda s, x: by_scores(s, x * s.raw),
    lambda sheets: np.geomspace(0.04, 25, 35),
    1.5,
)
FAMILIES: tuple[Family, ...] = (
    Family(
        "K clipped",
        "at {:.4g} and its negative",
        lambda s, c: by_keys(s, np.clip(s.k, -abs(c), abs(c))),
        _of_sizes("k"),
    ),
    Family(
        "V clipped",
        "at {:.4g} and its negative",
        lambda s, c: by_values(s, np.clip(s.v, -abs(c), abs(c))),
        _of_sizes("v"),
    ),
    Family(
        "K and V clipped",
        "at {:.4g} and its negative",
        lambda s, c: by_keys(s, np.clip(s.k, -abs(c), abs(c)), np.clip(s.v, -abs(c), abs(c))),
        _of_sizes("k"),
        2.5,
    ),
    Family(
        "Q clipped",
        "at {:.4g} and its negative",
        lambda s, c: by_keys(s, s.k, q=np.clip(s.q, -abs(c) * _unit(s), abs(c) * _unit(s))),
        _of_sizes("q"),
    ),
    Family(
        "scores clamped",
        "to at most {:.4g}",
        lambda s, c: by_scores(s, np.minimum(s.raw, c * LOG2_E)),
        _of_scores,
    ),
    Family(
        "scores clamped, from below",
        "to at least {:.4g}",
        lambda s, c: by_scores(s, np.maximum(s.raw, c * LOG2_E)),
        _of_scores,
    ),
    Family(
        "small weights dropped",
        "of scores below {:.4g}",
        lambda s, c: by_masked(s, np.where(s.raw < c * LOG2_E, -np.inf, s.scores)),
        _of_scores,
    ),
    Family(
        "soft cap that was not asked for",
        "of {:.4g}",
        lambda s, c: by_scores(s, c * LOG2_E * np.tanh(s.raw / (c * LOG2_E))),
        _CAPS,
    ),
    Family(
        "scores capped by a quotient",
        "s / (1 + |s| / {:.4g}), a function in place of a soft cap",
        lambda s, c: by_scores(s, _bent(s.raw, c * LOG2_E)),
        _CAPS,
    ),
    Family(
        "K with a constant added",
        "{:.4g} in every channel",
        lambda s, x: by_keys(s, s.k + x),
        _fixed(*_ADDED),
    ),
    Family(
        "V with a constant added",
        "{:.4g} in every channel",
        lambda s, x: by_values(s, s.v + x),
        _fixed(*_ADDED),
    ),
    SCALE,
    Family(
        "a bias that falls with the distance, as ALiBi's, that was not asked for",
        "{:.4g} for each key",
        lambda s, x: by_scores(s, s.raw - x * LOG2_E * (s.places - np.arange(s.kv_len))),
        _fixed(*(sign * x for x in np.geomspace(2e-3, 2, 16) for sign in (1, -1))),
        1.5,
    ),
)


def rounded(x: float) -> float:
    """Return a round number that is near x, else x."""
    for unit in (1.0, 0.5, 0.25, 0.1, 0.05):
        near = round(x / unit) * unit
        if near and abs(x - near) <= _NEARLY * abs(near):
            return near
    return x
