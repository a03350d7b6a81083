"""Splits joined with wrong weights, or in 16 bits; the keys per split are fitted.

Functions take sheets and a misfit, as those of `fitted` do.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics import rounding
from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit, best
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet
from labkernels.units import LOG2_E

_SIZES = (*range(8, 257, 8), *range(320, 1025, 64), 1536, 2048, 3072, 4096, 8192)
_COUNTS = (2, 3, 4, 5, 6, 7, 8, 16)  # numbers of splits of any size


def _right(m: Array, l: Array) -> Array:
    return np.exp2(m - m.max(0)) * l


def _powers(x: Array) -> Array:
    return np.exp2(x - x.max(0))


def _log2(l: Array) -> Array:
    return np.log2(l)


_WAYS: dict[str, Callable[..., Any]] = {
    "splits merged unweighted": lambda m, l: np.where(l > 0, 1.0, 0.0),
    "splits merged unweighted, empty ones too": lambda m, l: np.ones_like(m),
    "splits merged by l alone": lambda m, l: l,
    "splits merged by their maximum alone": lambda m, l: np.exp2(m - m.max(0)),
    "splits merged by 1 / lse": lambda m, l: 1 / _right(m, l),
    "splits merged by lse, not 2^lse": lambda m, l: m + _log2(l),
    "mixed log base at the merge of lse: exp for exp2": lambda m, l: _powers(
        LOG2_E * (m + _log2(l))
    ),
    "mixed log base at the merge of lse: exp2 of natural logs": lambda m, l: _powers(
        (m + _log2(l)) / LOG2_E
    ),
    "splits merged by another split's lse": lambda m, l: np.roll(_right(m, l), 1, 0),
    "splits merged by another split's lse, the next": lambda m, l: np.roll(_right(m, l), -1, 0),
    "splits merged by another split's lse, in reverse": lambda m, l: _right(m, l)[::-1],
    "first split counted twice at the merge": lambda m, l: _one(_right(m, l), 0, 2.0),
    "last split counted twice at the merge": lambda m, l: _one(_right(m, l), -1, 2.0),
    "split left out": lambda m, l: _one(_right(m, l), -1, 0.0),
    "split left out, the first": lambda m, l: _one(_right(m, l), 0, 0.0),
}


_OF_LANES: dict[str, Callable[..., Any]] = {
    "lanes merged unweighted": _WAYS["splits merged unweighted"],
    "lanes merged by l alone, without their maxima": _WAYS["splits merged by l alone"],
    "lanes merged by their maxima alone": _WAYS["splits merged by their maximum alone"],
}


def _one(weights: Array, which: int, factor: float) -> Array:
    weights = weights.copy()
    weights[which] *= factor
    return weights


def of_splits(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Splits are joined with wrong weights; for each way, the size that fits best."""
    longest = max(sheet.kv_len for sheet in sheets)
    if any(sheet.has_sink for sheet in sheets):
        return
    cuts = [(f"splits of {n} keys", n, 0) for n in _SIZES if n < longest]
    cuts += [(f"{n} splits", 0, n) for n in _COUNTS if n < longest]
    states: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def merged(
        weigh: Callable[..., Any], cut: tuple[str, int, int], fmt: str | None = None
    ) -> Callable[..., Any]:
        def outputs(sheet: Sheet) -> Array | None:
            place = id(sheet), cut
            if place not in states:
                states[place] = sheet, _states(sheet, *cut[1:])
            m, l, mean = states[place][1]
            return _merged(m, l, mean, weigh, fmt)

        return outputs

    for name, weigh in _WAYS.items():
        yield from best(misfit, [Mistake(name, cut[0], merged(weigh, cut)) for cut in cuts])
    for fmt in ("bf16", "fp16"):
        name = f"partial outputs merged in {fmt}"
        found = [Mistake(name, cut[0], merged(_right, cut, fmt), precision=True) for cut in cuts]
        yield from best(misfit, found)


def of_lanes(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Lanes or warps that take keys in turn are joined with wrong weights."""
    if any(sheet.has_sink for sheet in sheets):
        return
    longest = max(sheet.kv_len for sheet in sheets)
    for run in (1, 2, 4, 8, 16, 32):
        for lanes in (2, 4, 8):
            if run * lanes > longest:
                continue
            for name, weigh in _OF_LANES.items():

                def outputs(
                    sheet: Sheet, w: Callable[..., Any] = weigh, r: int = run, n: int = lanes
                ) -> Array | None:
                    return _merged(*_states_of_lanes(sheet, r, n), w, None)

                where = f"{lanes} lanes that take {run} keys in turn"
                yield Mistake(name, where, outputs)


def _states_of_lanes(sheet: Sheet, run: int, lanes: int) -> tuple[Array, Array, Array]:
    """Return m, l and mean as _states does, of the keys of each lane."""
    lane = np.arange(sheet.kv_len) // run % lanes
    states = []
    for one in range(lanes):
        s = sheet.scores[:, lane == one]
        top = s.max(1, keepdims=True, initial=-np.inf)  # a short request has lanes without keys
        p = np.exp2(s - np.where(np.isinf(top), 0.0, top))
        states.append((top, p.sum(1, keepdims=True), p @ sheet.v[lane == one]))
    m, l, o = (np.stack(x) for x in zip(*states, strict=True))
    return m, l, np.where(l > 0, o / np.where(l > 0, l, 1.0), 0.0)


def _states(sheet: Sheet, keys: int, parts: int) -> tuple[Array, Array, Array]:
    """Return m, l and mean of splits of `keys` keys each, or of `parts` splits if keys is 0.

    Shapes: [S, R, 1], [S, R, 1], [S, R, Dv].
    """
    n = sheet.kv_len
    size = keys or -(-n // parts)
    states = []
    for first in range(0, n, size):
        s = sheet.scores[:, first : first + size]
        top = s.max(1, keepdims=True)
        p = np.exp2(s - np.where(np.isinf(top), 0.0, top))
        states.append((top, p.sum(1, keepdims=True), p @ sheet.v[first : first + size]))
    m, l, o = (np.stack(x) for x in zip(*states, strict=True))
    return m, l, np.where(l > 0, o / np.where(l > 0, l, 1.0), 0.0)


def _merged(
    m: Array, l: Array, mean: Array, weigh: Callable[..., Any], fmt: str | None
) -> Array | None:
    if len(m) == 1:
        return None
    if fmt:  # a row of one split is not merged; its rounding may be the store's own
        alone = (l > 0).sum(0) == 1
        mean = np.where(alone, mean, rounding.round_to(mean, fmt))
    weights = np.nan_to_num(weigh(m, l), posinf=0.0, neginf=0.0)
    return (weights * mean).sum(0) / weights.sum(0)
