"""Running states that are rescaled wrongly at some steps, and splits with powers of their sums.

A rescale that is missed at a step leaves all keys before the step too heavy by the move of the
maximum; a rescale that is made twice leaves them too light. Functions take sheets and a misfit, as
those of `fitted` do.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit, best
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet
from labkernels.units import LOG2_E

_SIZES = (8, 16, 32, 48, 64, 128, 256)
_SINGLE = 12  # steps that are tried one by one
_ROUND = (*(-float(x) for x in range(1, 30)), *(-x * LOG2_E for x in range(1, 20)))
_TRIED = 9  # depths that are tried at once
_NEAREST = 6  # mistakes that are judged
_LOST = 1e9  # a power that makes 0 of any factor that is not 1
_POWERS = {
    "not rescaled": 0.0,
    "rescaled twice": 2.0,
    "rescaled by exp2 of natural logarithms": 1 / LOG2_E,
    "rescaled by exp of base-2 logarithms": LOG2_E,
    "rescaled by the inverse factor": -1.0,
    "not rescaled but set to 0": _LOST,
}
_OF = {"o": (True, False), "l": (False, True), "o and l": (True, True)}


def _steps(count: int) -> dict[str, Callable[..., Any]]:
    """Return functions that say which of the steps 0, 1, ... go wrong, by their words."""
    found: dict[str, Callable[..., Any]] = {
        "all steps": lambda t: t >= 0,
        "the odd steps": lambda t: t % 2 == 1,
        "the even steps": lambda t: t % 2 == 0,
        "the last step": lambda t: t == t.max(),
        "all but the last step": lambda t: t < t.max(),
    }
    for one in range(1, min(count, _SINGLE)):
        found[f"step {one} alone"] = lambda t, one=one: t == one
        found[f"steps from {one} on"] = lambda t, one=one: t >= one
    return found


def of_steps(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """o, l or both are rescaled by a wrong power of the factor, at some steps."""
    if any(sheet.has_sink for sheet in sheets):
        return
    longest = max(sheet.kv_len for sheet in sheets)
    found: list[tuple[float, Mistake]] = []
    limit = math.inf
    for size in _SIZES:
        if size >= longest:
            break
        ways = itertools.product(_POWERS.items(), _steps(-(-longest // size)).items(), _OF.items())
        for (words, power), (which, some), (what, of) in ways:
            outputs = _rescaled(size, power, some, of)
            cost = 0.5 * (which != "all steps") + 0.5 * ("alone" in which or "from" in which)
            where = f"at {which}, tiles of {size} keys"
            name = f"{what} {words} when the maximum moves"
            value = misfit(outputs, limit=limit)
            if value <= limit:
                found.append((value, Mistake(name, where, outputs, cost=cost)))
                found = sorted(found, key=lambda pair: pair[0])[:_NEAREST]
                limit = found[-1][0] if len(found) == _NEAREST else math.inf
    yield from (mistake for _, mistake in found)


def _rescaled(
    size: int, power: float, some: Callable[..., Any], of: tuple[bool, bool]
) -> Callable[..., Any]:
    def outputs(sheet: Sheet) -> Array | None:
        key = size, power, some
        if sheet.notes.get("rescaled", [None])[0] != key:
            sheet.notes["rescaled"] = key, *sums(sheet)
        _, right, wrong = sheet.notes["rescaled"]
        return (wrong if of[0] else right)[0] / (wrong if of[1] else right)[1]

    def sums(sheet: Sheet) -> Any:
        moves, label = _noted(sheet, "moves", _moves, size)
        step = np.arange(moves.shape[1])
        kept = np.where(some(step), moves, 0.0)
        later = np.cumsum(kept[:, ::-1], 1)[:, ::-1] - kept  # of the steps after each
        weights = sheet.weights * np.exp2((1 - power) * later)[:, label]
        right = _noted(sheet, "sums", lambda s, _: _sums(s, s.weights), 0)
        return right, _sums(sheet, weights)

    return outputs


def _sums(sheet: Sheet, weights: Array) -> tuple[Array, Array]:
    return weights @ sheet.v, weights.sum(1, keepdims=True)


def _noted(sheet: Sheet, name: str, make: Callable[..., Any], size: int) -> Any:
    """Return a result about a sheet's own rows, computed once."""
    if (name, size) not in sheet.notes:
        sheet.notes[name, size] = make(sheet, size)
    return sheet.notes[name, size]


def _moves(sheet: Sheet, size: int) -> Any:
    """Return by how much the maximum moves at each step, and the step of each key."""
    starts = np.arange(0, sheet.kv_len, size)
    tops = np.maximum.accumulate(np.maximum.reduceat(sheet.scores, starts, axis=1), 1)
    moves = np.diff(tops, axis=1, prepend=tops[:, :1])
    return np.where(np.isfinite(moves), moves, 0.0), np.arange(sheet.kv_len) // size


_EXPONENTS = (-1.0, 0.0, 0.5, 1 / LOG2_E, 1.0, LOG2_E, 2.0)


def of_powers(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Splits are weighted by wrong powers of 2^m and l."""
    if any(sheet.has_sink for sheet in sheets):
        return
    longest = max(sheet.kv_len for sheet in sheets)
    sizes = [n for n in (*_SIZES, 24, 40, 80, 96, 160, 192, 512) if n < longest]
    sizes += [-(-longest // n) for n in (2, 3, 4, 5, 6, 8)]
    found = []
    for size, a, b in itertools.product(dict.fromkeys(sizes), _EXPONENTS, _EXPONENTS):
        if a != 1 or b != 1:
            where = f"by 2^({a:.4g} m) l^{b:.4g}, splits of {size} keys"
            bases = b == 1 and a in (LOG2_E, 1 / LOG2_E)
            name = "mixed log base" if bases else "splits merged with wrong weights"
            found.append(Mistake(name, where, _powered(size, a, b), cost=1.0))
    yield from best(misfit, found)


def _powered(size: int, of_m: float, of_l: float) -> Callable[..., Any]:
    def outputs(sheet: Sheet) -> Array:
        m, l, mean = _noted(sheet, "splits", _splits, size)
        exponent = np.where(l > 0, of_m * m + of_l * np.log2(np.where(l > 0, l, 1.0)), -np.inf)
        weights = np.exp2(exponent - exponent.max(0))
        return (weights * mean).sum(0) / weights.sum(0)

    return outputs


def _splits(sheet: Sheet, size: int) -> Any:
    """Return m, l and the mean of each split. Shapes: [S, R, 1], [S, R, 1], [S, R, Dv]."""
    states = []
    for first in range(0, sheet.kv_len, size):
        s = sheet.scores[:, first : first + size]
        top = s.max(1, keepdims=True)
        top = np.where(np.isinf(top), 0.0, top)
        p = np.exp2(s - top)
        states.append((top, p.sum(1, keepdims=True), p @ sheet.v[first : first + size]))
    m, l, o = (np.stack(x) for x in zip(*states, strict=True))
    return m, l, o / np.where(l > 0, l, 1.0)


def of_skips(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Tiles are skipped whose largest weight lies below a number, which is fitted."""
    longest = max(sheet.kv_len for sheet in sheets)
    lowest, chosen, cuts = math.inf, (0, True, True), []
    for size, running in itertools.product((n for n in _SIZES if n < longest), (True, False)):
        depths = np.concatenate([_depths(sheet, size, running).ravel() for sheet in sheets])
        depths = np.unique(depths[np.isfinite(depths)])
        for of_l in (True, False):
            left, near = _between(misfit, depths, functools.partial(_skipped, size, running, of_l))
            if left < lowest:
                lowest, chosen, cuts = left, (size, running, of_l), near
    size, running, of_l = chosen
    of, but = "running" if running else "row's", ", but counted in the sum l" * (not of_l)
    for cut in cuts:
        where = f"tiles of {size} keys below {2**cut:.3g} of the {of} maximum{but}"
        outputs = _skipped(*chosen, cut)
        yield Mistake("small weights dropped, in whole tiles", where, outputs, cost=1.0)


def _depths(sheet: Sheet, size: int, running: bool) -> Array:
    """Return the log2 of the largest weight of each tile, relative to the maximum of that time."""
    tops = np.maximum.reduceat(sheet.scores, np.arange(0, sheet.kv_len, size), axis=1)
    with np.errstate(invalid="ignore"):
        return tops - (np.maximum.accumulate(tops, 1) if running else tops.max(1, keepdims=True))


def _between(
    misfit: Misfit, depths: Array, outputs: Callable[..., Any]
) -> tuple[float, list[float]]:
    """Return what the best depth leaves, and numbers from the depth below it up to it.

    No row of these sheets tells the numbers apart, but other rows may. Round ones come first.
    """
    low, high = 0, len(depths) - 1
    while True:
        some = np.unique(np.linspace(low, high, _TRIED).astype(int))
        left = [misfit(outputs(float(depths[j]))) for j in some]
        i = int(np.argmin(left))
        if high - low < _TRIED:
            break
        low, high = int(some[max(i - 1, 0)]), int(some[min(i + 1, len(some) - 1)])
    top, below = float(depths[some[i]]), float(depths[max(some[i] - 1, 0)])
    return left[i], [*(x for x in _ROUND if below < x <= top), (below + top) / 2]


def _skipped(size: int, running: bool, of_l: bool, cut: float) -> Callable[..., Any]:
    def outputs(sheet: Sheet) -> Array:
        kept = _noted(sheet, f"depths {running}", lambda s, n: _depths(s, n, running), size) >= cut
        p = sheet.weights * kept[:, np.arange(sheet.kv_len) // size]
        l = (p if of_l else sheet.weights).sum(1, keepdims=True)
        return p @ sheet.v / (l + np.exp2(sheet.sink - sheet.scores.max(1, keepdims=True)))

    return outputs


ALL = (of_steps, of_powers)
