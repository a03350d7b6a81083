"""Numbers that are not rounded to nearest, and formats without a scale, of Q, K, V and scores.

Functions take sheets and a misfit, as those of `fitted` do.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels import formats
from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit
from labkernels.numerics.verdict.diagnosis.whole_kernel.narrow import ways
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet
from labkernels.units import LOG2_E

_BITS = range(2, 12)  # fraction bits
_JUDGED = 2
_NEARLY = 1.02  # a format comes before as many bits that fit no better
_SHARE = 0.3  # of mean z^2: a way that leaves more is not judged
_FORMATS = ("tf32", "fp16", "bf16", "e4m3", "e5m2")
_OF_SCORES = ("scores", "exponents")

Kept = Callable[..., np.ndarray]


def _shortened(x: Array, bits: int, to: Callable[..., Any], fmt: str = "") -> np.ndarray:
    """Return x with so many bits after the first, or as a format has them, without a scale."""
    exponent = np.frexp(x)[1] - 1
    most = np.inf
    if fmt:
        named = formats.named(fmt)
        bits, most = named.fraction_bits, named.max
        exponent = np.maximum(exponent, named.emin)
    step = np.ldexp(1.0, exponent - bits)
    return np.clip(to(x / step) * step, -most, most)


def _ways() -> Iterator[tuple[str, str, Kept]]:
    """Yield a name, words and a function that keeps a tensor [n, D] in few bits."""
    for words, to in ways.TO.items():
        mode = words or "to nearest"
        for fmt in _FORMATS:
            yield f"{{}} in {fmt}", mode, lambda x, f=fmt, t=to: _shortened(x, 0, t, f)
        for bits in _BITS:
            name = f"{{}} in {bits} bits after the first"
            yield name, mode, lambda x, b=bits, t=to: _shortened(x, b, t)


def _units(sheet: Sheet) -> dict[str, float]:
    """Return what Q is in units of: Q itself, once scaled, once scaled for exp2."""
    scale = sheet.problem.scale
    return {"": scale * LOG2_E, ", once scaled": LOG2_E, ", once scaled by log2(e) too": 1.0}


def _outputs(sheet: Sheet, what: str, kept: Kept, unit: float) -> Array:
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
        found: list[tuple[float, str, str, Callable[..., Any]]] = []
        for name, words, kept, unit in _of(what, units):
            outputs = lambda sheet, w=what, f=kept, u=unit: _outputs(sheet, w, f, u)  # noqa: E731
            limit = found[-1][0] if len(found) == _JUDGED else _SHARE * before
            left = misfit(outputs, limit=limit)
            if left <= limit:
                found = sorted([*found, (left, name, words, outputs)], key=lambda one: one[0])
                found = found[:_JUDGED]
        formats_fit = [left for left, name, *_ in found if "bits after" not in name]
        for left, name, words, outputs in found:
            if "bits after" in name and any(x <= _NEARLY * left for x in formats_fit):
                continue
            yield Mistake(name, words, outputs, True, cost=2.0)


def _of(what: str, units: dict[str, float]) -> Iterator[tuple[str, str, Kept, float]]:
    """Yield names, words, functions and units in which a tensor may be kept."""
    alone = what in ("Q", *_OF_SCORES)
    for name, words, kept in _ways():
        given = name.format(what)
        if what in _OF_SCORES:
            whose = "scores less their maximum" if what == "exponents" else "scores"
            given = given.replace(f"{what} in", f"{whose} rounded to")
        for said, unit in (units if alone else {"": 1.0}).items():
            yield given, words + said, kept, unit


ALL = (of_modes,)
