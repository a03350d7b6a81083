"""P, the sum l, the accumulator of o and partial outputs in few bits.

Functions take sheets and a misfit, as those of `fitted` do.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels import formats
from labkernels.numerics import rounding
from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit
from labkernels.numerics.verdict.diagnosis.whole_kernel.narrow.grids import GRIDS, Grid
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Cut, Sheet
from labkernels.numerics.verdict.diagnosis.whole_kernel.sums.precision import accumulated
from labkernels.units import LOG2_E

_TILES = (16, 32, 64, 128)
_BITS = range(1, 11)  # fraction bits of P
_JUDGED = 3
_ONE = 1e-3  # a factor this near to 1 is none
_COUNTS = (2, 3, 4, 5, 6, 7, 8, 16)
_SIZES = (16, 32, 64, 96, 128, 192, 256)
_FORMATS = ("bf16", "fp16", "e4m3", "e5m2")
_NAMED = {grid.name: grid for grid in GRIDS}
_STEPS = Grid("255 steps", 255)


def _grids() -> Iterator[tuple[str, str, Callable[..., Any]]]:
    """Yield names, words and functions of P in (0, 1]."""
    for grid, others in (
        (_NAMED["e4m3"], (256.0, 240.0, 128.0)),
        (_NAMED["e5m2"], (256.0, 32768.0)),
        (_NAMED["int8"], (128.0, 126.0)),
        (_STEPS, ()),
        (_NAMED["e2m1"], (4.0,)),
        (_NAMED["int4"], (15.0,)),
    ):
        for top in (grid.most, *others):
            words = f"times {top:g}"
            yield (
                f"P in {grid.name}",
                words,
                lambda p, g=grid, c=top: (
                    (rounding.round_to(c * p, g.name) if g.name == "e5m2" else g.rounded(c * p)) / c
                ),
            )
    for fmt, tops in (("e5m2", (1.0, 32768.0)), ("e4m3", (1.0, 448.0, 256.0, 128.0))):
        for top in tops:
            yield (
                f"P in {fmt}",
                f"times {top:g}, cut off from fp16",
                lambda p, f=fmt, c=top: _cut(rounding.round_to(c * p, "fp16"), f) / c,
            )
    for bits, (words, to) in itertools.product(
        _BITS, {"cut off, not rounded to nearest": np.floor, "": np.rint}.items()
    ):
        name = f"P in {bits} bits after the first"
        yield name, words, lambda p, b=bits, f=to: _shortened(p, b, f)


def _cut(p: Array, fmt: str) -> np.ndarray:
    """Return positive numbers, cut to the bits of a format."""
    named = formats.named(fmt)
    step = np.ldexp(1.0, np.maximum(np.frexp(p)[1] - 1, named.emin) - named.fraction_bits)
    return np.floor(p / step) * step


def _shortened(p: Array, bits: int, to: Callable[..., Any]) -> np.ndarray:
    step = np.ldexp(1.0, np.frexp(p)[1] - 1 - bits)
    return to(p / step) * step


def of_p(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """P has few bits, against the row's or the running maximum; the output may have a factor."""
    if any(sheet.has_sink for sheet in sheets):
        return
    found: list[tuple[float, int, Mistake]] = []
    longest = max(sheet.kv_len for sheet in sheets)
    tiles = (0, *(n for n in _TILES if n < longest))
    for (name, words, to), tile, rounded in itertools.product(_grids(), tiles, (False, True)):
        outputs = lambda sheet, f=to, n=tile, r=rounded: _of_p(sheet, f, n, r)  # noqa: E731
        factor = _factor(sheets, outputs)
        if not np.isfinite(factor):
            continue
        alone = abs(factor - 1) <= _ONE
        given = outputs if alone else _times(outputs, factor)
        of = f"maximum of tiles of {tile}" if tile else "row's maximum"
        said = (words, f"against the {of}", "l is the sum of the rounded ones" * rounded)
        where = ", ".join(filter(None, said)) + f"; the output times {factor:.4g}" * (not alone)
        more = "" if alone else ", and the output by a factor"
        mistake = Mistake(name + more, where, given, alone, cost=1.5 + (not alone))
        found.append((misfit(given), len(found), mistake))
    for _, _, mistake in sorted(found, key=lambda one: one[:2])[:_JUDGED]:
        yield mistake


def _factor(sheets: list[Sheet], outputs: Callable[..., Any]) -> float:
    """Return the factor on outputs that fits best."""
    above = below = 0.0
    for sheet in sheets:
        given = outputs(sheet)
        above += float((sheet.out * given / sheet.sigma**2).sum())
        below += float((given**2 / sheet.sigma**2).sum())
    return above / below if below > 0 else np.nan


def _times(outputs: Callable[..., Any], factor: float) -> Callable[..., Any]:
    return lambda sheet: factor * outputs(sheet)


def _of_p(sheet: Sheet, to: Callable[..., Any], tile: int, rounded: bool) -> Array:
    if tile:
        starts = np.arange(0, sheet.kv_len, tile)
        tops = np.maximum.accumulate(np.maximum.reduceat(sheet.scores, starts, axis=1), 1)
        top = tops.repeat(tile, 1)[:, : sheet.kv_len] - sheet.scores.max(1, keepdims=True)
        back = np.exp2(np.where(np.isfinite(top), top, 0.0))
    else:
        back = np.ones_like(sheet.weights)
    p = to(sheet.weights / back) * back
    return p @ sheet.v / (p if rounded else sheet.weights).sum(1, keepdims=True)


def of_sums(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """The sum l, or the accumulator of o, has few bits after each tile."""
    if any(sheet.has_sink for sheet in sheets):
        return
    for fmt, tile, moves, cut in itertools.product(
        _FORMATS, (8, *_TILES), (True, False), (False, True)
    ):
        where = f"{'cut off' if cut else 'rounded'} after every {tile} keys"
        where += ", against the row's maximum" * (not moves)
        for what in ("o", "l"):
            yield Mistake(
                f"{what} accumulated in {fmt}",
                where,
                lambda sheet, w=what, f=fmt, n=tile, m=moves, c=cut: accumulated(
                    sheet, f, n, w, m, cut=c
                ),
                precision=True,
                control=lambda sheet, w=what, n=tile, m=moves: accumulated(sheet, None, n, w, m),
            )


def of_partials(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Splits store their outputs, or their log-sum-exps, in few bits before the merge."""
    if any(sheet.has_sink for sheet in sheets):
        return
    longest = max(sheet.kv_len for sheet in sheets)
    parts = [-(-longest // n) for n in _COUNTS]  # keys of parts of which the last is shorter
    cuts = [Cut(n) for n in dict.fromkeys((*_SIZES, *(-n for n in _COUNTS), *parts)) if n < longest]
    for cut, fmt in itertools.product(cuts, _FORMATS):
        for kind, words in (
            ("partial outputs merged in", "each divided by its sum"),
            ("partial outputs merged in", "not yet divided"),
            ("splits merged with log-sum-exps in", ""),
        ):
            yield Mistake(
                f"{kind} {fmt}",
                ", ".join(filter(None, (cut.words, words))),
                lambda sheet, c=cut, f=fmt, w=words: _merged(sheet, c, f, w),
                precision=True,
                cost=1.0,
                control=lambda sheet, c=cut, w=words: _merged(sheet, c, "", w),
            )


def _merged(sheet: Sheet, cut: Cut, fmt: str, words: str) -> Array:
    """Return the rows of splits that are rounded where the words say; "" rounds nothing."""
    place = "partials", cut
    if place not in sheet.notes:
        starts = cut.starts(sheet.kv_len)
        tops = np.maximum.reduceat(sheet.scores, starts, axis=1)
        tops = np.where(np.isfinite(tops), tops, 0.0)
        label = np.repeat(np.arange(len(starts)), np.diff(starts, append=sheet.kv_len))
        p = np.exp2(sheet.scores - tops[:, label])
        used = p if sheet.p_format.endswith("x2") else rounding.round_to(p, sheet.p_format)
        l = np.add.reduceat(p, starts, axis=1)
        o = np.stack([used[:, label == i] @ sheet.v[label == i] for i in range(len(starts))], 1)
        sheet.notes[place] = tops, l, o
    m, l, o = sheet.notes[place]
    safe = np.where(l > 0, l, 1.0)[..., None]
    lse = np.where(l > 0, m + np.log2(safe[..., 0]), -np.inf)
    mean = o / safe
    if fmt and words.startswith("each"):
        mean = rounding.round_to(mean, fmt)
    elif fmt and words:
        mean = rounding.round_to(o, fmt) / safe
    elif fmt:
        lse = rounding.round_to(lse / LOG2_E, fmt) * LOG2_E
    weights = np.exp2(lse - lse.max(1, keepdims=True))
    return (weights[..., None] * mean).sum(1) / weights.sum(1, keepdims=True)


ALL = (of_p, of_sums, of_partials)
