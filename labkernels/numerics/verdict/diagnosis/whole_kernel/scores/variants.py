"""A variant that the kernel computes otherwise than asked: its cap, its sinks or its slopes.

Functions take sheets and a misfit, as those of `fitted` do.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.truth.variant import VariantTensors
from labkernels.numerics.verdict.diagnosis.whole_kernel import fitted
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet
from labkernels.units import LOG2_E

_FACTORS = {
    "in base 2 where e is meant": math.log(2),
    "in base e where 2 is meant": LOG2_E,
    "with the wrong sign": -1.0,
    "halved": 0.5,
    "twice": 2.0,
}
_NEAR = 0.01  # largest relative distance of a factor from one of these
_MOST_HEADS = 65  # heads whose sinks or slopes are tried for those of others
_LISTED = 8
_SPLITS = (2, 3, 4, 5, 6, 7, 8, 16)  # numbers of splits, each with the sink


def of_variant(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """The kernel has another cap, other sinks or other slopes than those that were asked for."""
    variant = sheets[0].problem.variant
    if variant is None:
        return
    if variant.soft_cap is not None:
        yield from _caps(variant, misfit)
    for field, what in (("sinks", "sinks"), ("alibi", "ALiBi slopes")):
        given = getattr(variant, field)
        if given is not None:
            numbers = np.asarray(given, np.float64)
            group = sheets[0].problem.group
            yield from _tensors(variant, field, what, numbers, group, misfit)


def _caps(variant: VariantTensors, misfit: Misfit) -> Iterator[Mistake]:
    asked = float(variant.soft_cap or 1.0)

    def capped(x: float) -> Callable[..., Any]:
        return _as_if(replace(variant, soft_cap=math.exp(x)))

    grid = math.log(asked) + np.linspace(-4, 4, 41)
    cap = math.exp(fitted.least(misfit, capped, grid))
    yield Mistake("soft cap of another number", f"{cap:.4g} for {asked:g}", capped(math.log(cap)))

    def not_back(sheet: Sheet) -> Array:
        return sheet.attend(sheet.masked(sheet.raw / asked))

    def clipped(sheet: Sheet) -> Array:
        other = replace(sheet, problem=replace(sheet.problem, variant=without), notes={})
        scores = np.clip(other.raw, -asked * LOG2_E, asked * LOG2_E)
        return sheet.attend(sheet.masked(scores))

    def of_two(inside: float, outside: float) -> Callable[..., Any]:
        c, d = inside * LOG2_E, outside * LOG2_E
        return lambda sheet: sheet.attend(sheet.masked(d * np.tanh(sheet.q @ sheet.k.T / c)))

    if variant.alibi is None:
        inside = math.exp(fitted.least(misfit, lambda x: of_two(math.exp(x), asked), grid))
        where = f"{inside:.4g} inside tanh for {asked:g}"
        yield Mistake("soft cap of another number inside tanh", where, of_two(inside, asked))
        outside = math.exp(fitted.least(misfit, lambda x: of_two(asked, math.exp(x)), grid))
        where = f"tanh times {outside:.4g} for {asked:g}"
        yield Mistake("soft cap of another number outside tanh", where, of_two(asked, outside))
        without = replace(variant, soft_cap=None)
        yield Mistake("soft cap: scores clipped at the cap, without tanh", f"{asked:g}", clipped)
        yield Mistake("soft cap that is not multiplied back", f"of {asked:g}", not_back)


def _tensors(
    variant: VariantTensors, field: str, what: str, given: Array, group: int, misfit: Misfit
) -> Iterator[Mistake]:
    def having(numbers: Array) -> Callable[..., Any]:
        changed: dict[str, Any] = {field: numbers}
        return _as_if(replace(variant, **changed))

    heads = np.arange(len(given))
    for step in range(1, min(len(given), _MOST_HEADS)):
        where = f"head h has that of head (h + {step}) % {len(given)}"
        yield Mistake(f"{what} of another head", where, having(given[(heads + step) % len(given)]))
    yield Mistake(f"{what} of another head", "in reverse", having(given[::-1].copy()))
    by_group = having(given[heads // group])
    yield Mistake(f"{what} of another head", "that of its KV head's number", by_group)
    for words, factor in _FACTORS.items():
        yield Mistake(f"{what} {words}", "", having(factor * given))
    if field == "sinks":
        for splits in _SPLITS:
            where = f"once in each of {splits}"
            yield Mistake("sinks once per split", where, having(given + math.log(splits)))
        yield Mistake("sinks not rescaled by the maximum", "", _not_rescaled)

    def times(x: float) -> Callable[..., Any]:
        return having(math.exp(x) * given)

    factor = math.exp(fitted.least(misfit, times, np.linspace(-3.5, 3.5, 57)))
    if all(abs(factor - known) > _NEAR * factor for known in _FACTORS.values()):
        where = f"times {factor:.4g}"
        yield Mistake(f"{what} by a factor", where, times(math.log(factor)), vague=True)


def of_each_sink(sheets: list[Sheet]) -> Iterator[Mistake]:
    """Each head has a sink of its own number, which follows from the factors of its rows."""
    variant = sheets[0].problem.variant
    if variant is None or variant.sinks is None:
        return
    given = np.asarray(variant.sinks, np.float64)
    above, below = np.zeros(len(given)), np.zeros(len(given))
    top = max(float(sheet.scores.max()) for sheet in sheets)
    for sheet in sheets:
        weight = 1 / np.maximum(sheet.sigma, 1e-300) ** 2
        square = (sheet.truth**2 * weight).sum(1)
        factor = (sheet.out * sheet.truth * weight).sum(1) / np.maximum(square, 1e-300)
        m, l = sheet.scores.max(1), sheet.weights.sum(1)
        right = l + np.exp2(sheet.sink[:, 0] - m)
        sink = (right / factor - l) * np.exp2(m - top)  # 2^sink, relative to all scores
        precise = square * (factor**2 / right * np.exp2(top - m)) ** 2
        usable = np.isfinite(sink * precise)
        np.add.at(above, sheet.heads[usable], (sink * precise)[usable])
        np.add.at(below, sheet.heads[usable], precise[usable])
    numbers = np.where(below > 0, (np.log2(above / below) + top) / LOG2_E, given)
    if not np.isfinite(numbers).all():
        return
    told = ", ".join(f"{x:.3g}" for x in numbers[:_LISTED]) + ", ..." * (len(given) > _LISTED)
    where = f"{told} for heads 0 to {len(given) - 1}"
    changed = _as_if(replace(variant, sinks=numbers))
    before = sum(float((((s.out - s.truth) / s.sigma) ** 2).sum()) for s in sheets)
    after = sum(float((((s.out - changed(s)) / s.sigma) ** 2).sum()) for s in sheets)
    if not after * fitted.CLEARLY <= before:  # so many numbers explain a part of any errors
        return
    yield Mistake("sinks of other numbers", where, changed, cost=1.5, for_each=True)


def _not_rescaled(sheet: Sheet) -> Array:
    """Return the outputs if sinks count as 2^sink beside weights of 2^(s - m)."""
    m, l = sheet.scores.max(1, keepdims=True), sheet.weights.sum(1, keepdims=True)
    right = l + np.exp2(sheet.sink - np.where(np.isfinite(m), m, 0.0))
    return sheet.truth * right / (l + np.exp2(sheet.sink))


def _as_if(variant: VariantTensors) -> Callable[..., Any]:
    """Return the outputs of a kernel with another variant."""

    def outputs(sheet: Sheet) -> Array:
        other = replace(sheet, problem=replace(sheet.problem, variant=variant))
        return other.attend(other.scores)

    return outputs
