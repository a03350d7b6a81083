"""Mistakes with a fitted number: a factor, a cap, a window, a sink, a range of keys.

Each function takes sheets and a function that returns the misfit of outputs, and yields Mistakes
with the number that fits best.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels import formats
from labkernels.numerics.arrays import Array
from labkernels.numerics.error import sigma as error_sigma
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake, scaled
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet
from labkernels.numerics.verdict.significance import RIGHT_RMS
from labkernels.units import LOG2_E

# returns the mean z^2 that outputs leave, by default on a few rows of each sheet
Misfit = Callable[..., float]
_GOLDEN = (5**0.5 - 1) / 2
_STEPS = 40  # of a golden section: the bracket shrinks to 4e-9 of itself, for outputs in fp32
_NEARLY = 0.1  # distance of a fitted count of keys from a whole number that rounding may cause
# Share of the predicted loss. The weight of a key that was its warp's maximum for a while is exact,
# but the prediction knows only the last maximum.
_TRUNCATED = (0.4, 1.3)
_RANDOM = 0.5  # least mean z^2 that the random part of a cut leaves: 1 is expected
# Round caps: where scores are large, the minimum of the misfit is too narrow for a grid alone.
_CAPS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 16, 20, 25, 30, 32, 40, 50, 60, 64, 80, 100, 128, 200)
_TILES = (8, 16, 32, 64, 128, 256)  # keys of a last tile that padding fills up
_EQUAL = 1e-6  # relative difference of two misfits that rounding may cause
_TWICE = 1.3  # rms of z of an output that is rounded again after a factor
_ROWS_OF_HEAD = 3  # least rows for each head that has a number of its own
ROWS = 3  # rows of a sheet that give candidates
CLEARLY = 50.0  # factor by which mean z^2 must fall where many numbers were fitted
NEAREST = 2  # candidates per row


def of_scale(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """All scores have a factor."""
    best = least(misfit, lambda x: scaled(math.exp(x)), np.log(np.geomspace(0.05, 20, 41)))
    near = least(misfit, lambda x: scaled(math.exp(x)), np.linspace(-0.02, 0.02, 9))
    for x in sorted({best, near}):
        factor = math.exp(x)
        yield Mistake(
            "wrong scale",
            f"scores times {factor:.5g}",
            scaled(factor),
            vague=True,
            settles=RIGHT_RMS,
            like_scale=True,
        )


def of_cap(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Scores have a soft cap c tanh(s / c), with c in natural units."""
    grid = sorted({*np.geomspace(0.5, 300, 41), *_CAPS})
    for name, after in (("", False), (", applied after the mask", True)):
        cap = math.exp(least(misfit, lambda x, a=after: _capped(math.exp(x), a), np.log(grid)))
        if abs(cap - round(cap)) < 0.02 * cap and round(cap) > 0:  # caps are round numbers
            cap = float(round(cap))
        where = f"of {cap:.3g}{name}"
        yield Mistake("soft cap that was not asked for", where, _capped(cap, after))
        if not any(sheet.hidden.any() for sheet in sheets):
            return


def _capped(cap: float, after_mask: bool) -> Callable[..., Any]:
    def outputs(sheet: Sheet) -> Array:
        c = cap * LOG2_E
        scores = c * np.tanh(sheet.raw / c)
        return sheet.attend(np.where(sheet.hidden, -c if after_mask else -np.inf, scores))

    return outputs


def of_truncation(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """P is cut toward 0: every weight that is not exact loses half a spacing on average.

    If P keeps fewer bits than its format has, the deviation from the mean loss is random.
    """
    given = sheets[0].p_format
    coarser = [fmt for fmt in ("tf32", "fp16", "bf16") if formats.coarser(fmt, given)]
    for fmt in (given, *coarser) if given in ("fp16", "bf16") else coarser:

        def lost(sheet: Sheet, fmt: str = fmt) -> Array:
            spacing = error_sigma.p_spacing(sheet.weights, fmt)
            return spacing / 2 @ sheet.v / sheet.weights.sum(1, keepdims=True)

        def noise(sheet: Sheet, fmt: str = fmt) -> Array:
            spacing = error_sigma.p_spacing(sheet.weights, fmt) / sheet.weights.sum(1)[:, None]
            return spacing**2 / 12 @ sheet.v**2

        random = noise if fmt != given else None
        each = [(s, lost(s), s.sigma**2 + (random(s) if random else 0.0)) for s in sheets]
        above = sum(float(((s.truth - s.out) * x / variance).sum()) for s, x, variance in each)
        below = sum(float((x**2 / variance).sum()) for _, x, variance in each)
        beta = above / below if below > 0 else math.nan
        if _TRUNCATED[0] <= beta <= _TRUNCATED[1] and not (random and _too_even(each, beta)):
            of = f"to {fmt}, " if fmt != given else ""
            where = f"{of}toward 0, not rounded to nearest, beta {beta:.3g}"
            outputs = lambda sheet, b=beta, x=lost: sheet.truth - b * x(sheet)  # noqa: E731
            yield Mistake("P truncated", where, outputs, fmt == "tf32", noise=random)


def _too_even(each: list[tuple[Sheet, Array, Array]], beta: float) -> bool:
    """Return whether errors are far smaller than what a cut to fewer bits would leave at random."""
    left = [(s.truth - beta * lost - s.out) ** 2 / variance for s, lost, variance in each]
    return sum(float(x.sum()) for x in left) < _RANDOM * sum(x.size for x in left)


def of_factor(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """V or the output has one factor."""
    above = sum(float((s.out * s.truth / s.sigma**2).sum()) for s in sheets)
    below = sum(float((s.truth**2 / s.sigma**2).sum()) for s in sheets)
    if not below > 0 or not math.isfinite(above):
        return
    factor = above / below
    one = len(sheets) == 1 and len(sheets[0].tokens) == 1
    yield Mistake(
        "denominator of a row" if one else "V or the output by a factor",
        f"times {factor:.4g}" if one else f"times {factor:.5g}, beta {factor - 1:.3g}",
        lambda sheet: factor * sheet.truth,
        vague=True,
        settles=0.0 if one else _TWICE,
        noise=lambda sheet: max(factor**2 - 1, 0.0) * sheet.sigma**2,
    )


def _padded(log2_weight: float | dict[int, float]) -> Callable[..., Any]:
    """Return outputs with more weight in the denominator, in log2 units, for all heads or each."""

    def found(sheet: Sheet) -> Array:
        own: Any = log2_weight
        if isinstance(log2_weight, dict):
            each = [log2_weight.get(int(head), -np.inf) for head in sheet.heads]
            own = np.array(each)[:, None]
        m = sheet.scores.max(1, keepdims=True)
        l = sheet.weights.sum(1, keepdims=True)
        with np.errstate(over="ignore"):
            l = l + np.exp2(sheet.sink - m)
            return sheet.truth * (l / (l + np.exp2(own - m)))

    return found


def of_padding(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Keys of score 0 count in the denominator and have no value.

    They are as many for all rows, or as many as fill the last tile of each request. A number for
    each row would explain any factor on the row.
    """
    for size in _TILES:
        yield Mistake(
            "padding in the denominator",
            f"keys of score 0 up to a multiple of {size}",
            lambda sheet, n=size: (
                _padded(math.log2(-sheet.kv_len % n))(sheet) if sheet.kv_len % n else None
            ),
        )
    count = 2.0 ** least(misfit, _padded, np.linspace(-2, 10, 49))
    if round(count) >= 1 and abs(count - round(count)) < _NEARLY * max(1.0, count / 8):
        where = f"{round(count)} keys of score 0"
        yield Mistake("padding in the denominator", where, _padded(math.log2(round(count))))


def of_sink(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """One logit, a sink, counts in the denominator and has no value."""
    x = least(misfit, _padded, np.linspace(-20, 40, 61))
    where = f"of logit {x / LOG2_E:.3g}"
    yield Mistake("sink in the denominator", where, _padded(x), vague=True)


def of_sinks(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Every head has a sink of its own."""
    heads = sorted({int(head) for sheet in sheets for head in sheet.heads})
    logits: dict[int, float] = {}
    for head in heads if len(heads) > 1 else ():

        def at(x: float, head: int = head) -> Callable[..., Any]:
            return _padded(logits | {head: x})

        logits[head] = least(misfit, at, np.linspace(-20, 40, 31))
    if logits:
        shown = ", ".join(f"{x / LOG2_E:.3g}" for x in logits.values())
        where = f"of logits {shown} for heads {', '.join(map(str, logits))}"
        few = sum(len(sheet.tokens) for sheet in sheets) < _ROWS_OF_HEAD * len(heads)
        yield Mistake(
            "sink in the denominator",
            where,
            _padded(logits),
            vague=True,
            control=_factor_of_each if few else None,  # as many numbers as rows explain any factor
        )


def _factor_of_each(sheet: Sheet) -> Array:
    """Return right rows, each by the factor that fits it best."""
    weight = 1 / np.maximum(sheet.sigma, 1e-300) ** 2
    square = np.maximum((sheet.truth**2 * weight).sum(1), 1e-300)
    return sheet.truth * ((sheet.out * sheet.truth * weight).sum(1) / square)[:, None]


def least(misfit: Misfit, outputs: Callable[..., Any], grid: Array) -> float:
    """Return the number whose outputs fit best, by a grid and a golden section around its best.

    A misfit is computed until it shows which of two numbers fits better.
    """
    i, lowest = 0, math.inf
    for j, x in enumerate(grid):
        value = misfit(outputs(x), limit=lowest)
        if value < lowest:
            i, lowest = j, value
    low, high = grid[max(i - 1, 0)], grid[min(i + 1, len(grid) - 1)]
    a, b = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_a = misfit(outputs(a))
    at_b = misfit(outputs(b), limit=at_a)
    for _ in range(_STEPS):
        if at_a < at_b:
            high, b, at_b = b, a, at_a
            a = high - _GOLDEN * (high - low)
            at_a = misfit(outputs(a), limit=at_b)
        else:
            low, a, at_a = a, b, at_b
            b = low + _GOLDEN * (high - low)
            at_b = misfit(outputs(b), limit=at_a)
    return float((low + high) / 2)


def of_rows(
    sheets: list[Sheet], each: Callable[..., Any], rows: int = ROWS
) -> Iterator[tuple[Sheet, int, int]]:
    """Yield, for the worst rows, the indices of the outputs that come nearest to the row."""
    for sheet in sheets:
        worst = np.argsort(-(((sheet.out - sheet.truth) / sheet.sigma) ** 2).mean(1))
        for row in worst[:rows].tolist():
            outputs = each(sheet, row)
            if len(outputs) == 0:
                continue
            with np.errstate(invalid="ignore", over="ignore"):
                miss = (((sheet.out[row] - outputs) / sheet.sigma[row]) ** 2).sum(-1)
            miss = np.where(np.isfinite(miss), miss, np.inf)
            for i in np.argsort(miss, kind="stable")[:NEAREST].tolist():
                if np.isfinite(miss[i]):
                    yield sheet, row, i


def best(misfit: Misfit, mistakes: list[Mistake]) -> list[Mistake]:
    """Return the mistake that fits best; of those that are equal but for rounding, the first."""
    found, lowest = mistakes[:1], math.inf
    for mistake in mistakes:
        value = misfit(mistake.outputs, limit=lowest)
        if value < lowest * (1 - _EQUAL):
            found, lowest = [mistake], value
    return found


def run_words(first: int, size: int) -> str:
    """Return a run of keys in words."""
    return f"keys {first} to {first + size - 1}" if size > 1 else f"key {first}"


ALL = (of_truncation, of_padding, of_factor, of_scale, of_cap)
LATER = (of_sink, of_sinks)
