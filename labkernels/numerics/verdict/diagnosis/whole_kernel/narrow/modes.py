"""Numbers that are not rounded to nearest, and formats without a scale, of Q, K, V and scores.

Functions take sheets and a misfit, as those of `fitted` do.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels import formats
from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit
from labkernels.numerics.verdict.diagnosis.whole_kernel.narrow import grids
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet
from labkernels.units import LOG2_E

_BITS = range(2, 12)  # fraction bits
_JUDGED = 2
_TIE = 2.0**-22  # a relative distance below which a quotient in fp32 may be a whole number
_NEARLY = 1.02  # a format comes before as many bits that fit no better
_SHARE = 0.3  # of mean z^2: a way that leaves more is not judged
# Each takes a number and its own size times a tie: a quotient that should be whole may be less.
_TO: dict[str, Callable[..., Any]] = {
    "cut toward 0": lambda x, tie: np.trunc(x + tie),
    "rounded down": lambda x, tie: np.floor(x + tie),
    "rounded up": lambda x, tie: np.ceil(x + tie),
    "rounded away from 0": lambda x, tie: np.sign(x) * np.ceil(np.abs(x + tie)),
    "to nearest": lambda x, tie: np.rint(x),
}
_TIES: tuple[Callable[[np.ndarray], Any], ...] = (
    lambda x: _TIE * x,
    lambda x: 0.0,
    lambda x: -_TIE * x,
    lambda x: _TIE * np.abs(x),
    lambda x: -_TIE * np.abs(x),
)
_FORMATS = ("tf32", "fp16", "bf16", "e4m3", "e5m2")
_OF_SCORES = ("scores", "exponents")
_WHOLE = (("int8", 127.0), ("int8", 128.0), ("int4", 7.0))

Kept = Callable[..., np.ndarray]  # of numbers [n, D] and which of _TIES, or None


def _shortened(
    x: Array, bits: int, to: Callable[..., Any], fmt: str = "", tie: int | None = None
) -> np.ndarray:
    """Return x with so many bits after the first, or as a format has them, without a scale."""
    exponent = np.frexp(x)[1] - 1
    most = np.inf
    if fmt:
        named = formats.named(fmt)
        bits, most = named.fraction_bits, named.max
        exponent = np.maximum(exponent, named.emin)
    step = np.ldexp(1.0, exponent - bits)
    x = x / step
    return np.clip(to(x, 0.0 if tie is None else _TIES[tie](x)) * step, -most, most)


def _ways() -> Iterator[tuple[str, str, Kept]]:
    """Yield a name, words and a function that keeps a tensor [n, D] in few bits."""
    for mode, to in _TO.items():
        for fmt in _FORMATS:
            yield f"{{}} in {fmt}", mode, lambda x, i, f=fmt, t=to: _shortened(x, 0, t, f)
        for bits in _BITS:
            words = f"{{}} in {bits} bits after the first"
            yield words, mode, lambda x, i, b=bits, t=to: _shortened(x, b, t)
        if mode == "to nearest":
            continue  # blocks has these
        for (grid, most), blocks in itertools.product(_WHOLE, grids.BLOCKS[: grids.USUAL]):
            where = f"{mode}, with a scale for each {blocks.words}, its largest over {most:g}"
            yield f"{{}} in {grid}", where, _in_steps(blocks, most, to)
        for fmt, blocks in itertools.product(("e4m3", "e5m2"), grids.BLOCKS[: grids.USUAL]):
            where = f"{mode}, with a scale for each {blocks.words}"
            yield f"{{}} in {fmt}", where, _in_steps(blocks, formats.named(fmt).max, to, fmt)


def _in_steps(blocks: grids.Blocks, most: float, to: Callable[..., Any], fmt: str = "") -> Kept:
    def kept(x: Array, tie: int | None) -> Array:
        step = np.maximum(blocks.back(blocks.each(np.abs(x), np.maximum), x.shape), 1e-300) / most
        parts = x / step
        if tie is not None:  # kernels divide in fp32
            parts = parts.astype(np.float32).astype(np.float64)
        if fmt:
            return step * _shortened(parts, 0, to, fmt, tie)
        return step * to(parts, 0.0 if tie is None else _TIES[tie](parts))

    return kept


def _units(sheet: Sheet) -> dict[str, float]:
    """Return what Q is in units of: Q itself, once scaled, once scaled for exp2."""
    scale = sheet.problem.scale
    return {"": scale * LOG2_E, ", once scaled": LOG2_E, ", once scaled by log2(e) too": 1.0}


def _outputs(sheet: Sheet, what: str, way: Kept, unit: float, tie: int | None) -> Array:
    def kept(x: Array) -> Array:
        return way(x, tie)

    if what == "exponents":
        top = sheet.scores.max(1, keepdims=True)
        return sheet.attend(sheet.masked(unit * kept((sheet.raw - top) / unit)))
    if what == "scores":
        return sheet.attend(sheet.masked(unit * kept(sheet.raw / unit)))
    scores = sheet.scores
    if what != "V":
        q = sheet.q
        if "Q" in what:  # exactly Q in its units, to keep its ties
            q = unit * kept((q / unit).astype(np.float32).astype(np.float64))
        k = kept(sheet.k) if "K" in what else sheet.k
        scores = sheet.masked(sheet.shaped(q @ k.T))
    return sheet.attend(scores, kept(sheet.v) if "V" in what else sheet.v)


def of_modes(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Q, K, V or scores are cut or rounded up or down, or have a format without a scale."""
    before, units = misfit(lambda sheet: None), _units(sheets[0])
    for what in ("K", "V", "K and V", "Q", "scores", "exponents"):
        if what in _OF_SCORES and sheets[0].problem.variant is not None:
            continue
        found: list[tuple[float, str, str, list[Callable[..., Any]]]] = []
        for name, words, kept, unit in _of(what, units):
            each = [
                lambda sheet, w=what, f=kept, u=unit, t=tie: _outputs(sheet, w, f, u, t)
                for tie in (None, *range(len(_TIES) if "each" in words else 0))
            ]
            limit = found[-1][0] if len(found) == _JUDGED else _SHARE * before
            left = misfit(each[0], limit=limit)
            if left <= limit:
                found = sorted([*found, (left, name, words, each)], key=lambda one: one[0])
                found = found[:_JUDGED]
        formats_fit = [left for left, name, *_ in found if "bits after" not in name]
        for left, name, words, each in found:
            if "bits after" in name and any(x <= _NEARLY * left for x in formats_fit):
                continue
            yield Mistake(name, words, min(each, key=misfit), True, cost=2.0)


def _of(what: str, units: dict[str, float]) -> Iterator[tuple[str, str, Kept, float]]:
    """Yield names, words, functions and units in which a tensor may be kept."""
    alone = what in ("Q", *_OF_SCORES)
    for name, words, kept in _ways():
        if alone and "for each" in words and (what != "Q" or "token" not in words):
            continue
        given = name.format(what)
        if what in _OF_SCORES:
            whose = "scores less their maximum" if what == "exponents" else "scores"
            given = given.replace(f"{what} in", f"{whose} rounded to")
        for said, unit in (units if alone else {"": 1.0}).items():
            yield given, words + said, kept, unit


ALL = (of_modes,)
