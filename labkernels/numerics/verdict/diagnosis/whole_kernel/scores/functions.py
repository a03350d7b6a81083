"""Scores that are clamped, capped, dropped or rounded before the exponential, or other weights.

Functions take sheets and a misfit, as those of `fitted` do.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit, least
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet
from labkernels.units import LOG2_E

_NEARLY = 1e-3  # relative distance from a round number
_SCORE_STEPS = (1, 2, 4, 8, 16, 32, 64, 128)
_STEPS = (7, 8, 15, 16, 31, 32, 63, 64, 127, 128, 240, 255, 256, 448, 511, 512, 1023, 1024)
_EIGHT_BITS = (127, 128, 255, 256)


def _top(sheet: Sheet) -> Array:
    return sheet.scores.max(1, keepdims=True)


def _masked(sheet: Sheet, scores: Array) -> Array:
    return sheet.attend(np.where(sheet.hidden, -np.inf, scores))


_BITS = (8, 4)  # of scores that are integers
_DEPTHS = -LOG2_E * np.geomspace(30, 0.02, 33)  # of exponents that are clamped
_CUTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "scores clamped": (
        "to at most {:.4g}",
        lambda sheet, c: _masked(sheet, np.minimum(sheet.raw, c)),
    ),
    "scores clamped, from below": (
        "to at least {:.4g}",
        lambda sheet, c: _masked(sheet, np.maximum(sheet.raw, c)),
    ),
    "scores clamped, both ways": (
        "to {:.4g} and its negative",
        lambda sheet, c: _masked(sheet, np.clip(sheet.raw, -abs(c), abs(c))),
    ),
    "soft cap that is not multiplied back": (
        "tanh(s / {:.4g})",
        lambda sheet, c: _masked(sheet, LOG2_E * np.tanh(sheet.raw / max(c, 1e-9))),
    ),
    "exponents clamped": (
        "s - max to at least {:.4g}",
        lambda sheet, c: _masked(sheet, np.maximum(sheet.raw, _top(sheet) + c)),
    ),
    "exponents clamped, those of hidden keys too": (
        "s - max to at least {:.4g}",
        lambda sheet, c: (
            sheet.attend(np.maximum(sheet.scores, _top(sheet) + c)) if sheet.hidden.any() else None
        ),
    ),
    "small weights dropped": (
        "s - max below {:.4g}",
        lambda sheet, c: sheet.attend(
            np.where(sheet.scores < _top(sheet) + min(c, 0.0), -np.inf, sheet.scores)
        ),
    ),
}


def of_cuts(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Scores or exponents stop at a number, which is fitted. Units: the number in natural units."""
    scores = np.concatenate([s.scores[np.isfinite(s.scores)] for s in sheets])
    depths = np.concatenate([(s.scores - _top(s))[np.isfinite(s.scores)].ravel() for s in sheets])
    for name, (words, cut) in _CUTS.items():
        own = depths if "s - max" in words else np.abs(scores) if "both" in name else scores
        grid = np.unique(np.quantile(own, np.linspace(0.002, 0.998, 33)))
        if "tanh" in words:  # the number may be far above all scores, where it acts as a scale
            grid = np.geomspace(0.5, 300, 41) * LOG2_E
        if "hidden" in name:  # their exponents are as low as can be
            grid = _DEPTHS
        if len(grid) < 3:
            continue
        at = least(misfit, lambda c, f=cut: lambda sheet: f(sheet, c), grid) / LOG2_E
        at = _round(at)
        yield Mistake(
            name,
            words.format(at),
            lambda sheet, f=cut, c=at: f(sheet, c * LOG2_E),
        )
        for bits in _BITS if "both" in name else ():
            yield Mistake(
                "scores clamped, both ways, in few bits",
                f"{words.format(at)}, in {bits} bits",
                lambda sheet, c=at, b=bits: _in_bits(sheet, abs(c) * LOG2_E, b),
            )


def _in_bits(sheet: Sheet, limit: float, bits: int) -> Array:
    """Return rows whose scores are integers of some bits, the largest of which is the limit."""
    step = max(limit, 1e-9) / (2.0 ** (bits - 1) - 1)
    return _masked(sheet, np.rint(np.clip(sheet.raw, -limit, limit) / step) * step)


def _round(x: float) -> float:
    for unit in (1.0, 0.5, 0.25, 0.1):
        if abs(x - round(x / unit) * unit) <= _NEARLY * max(abs(x), 1.0):
            return round(x / unit) * unit
    return x


def of_weak_mask(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """The mask adds a finite number to hidden keys, or sets them to it, where -inf belongs."""
    if not any(sheet.hidden.any() for sheet in sheets):
        return
    for words, change in (
        ("{:.4g} is added to their scores", lambda raw, c: raw + c),
        ("their scores are {:.4g}", lambda raw, c: np.full_like(raw, c)),
    ):

        def outputs(sheet: Sheet, c: float, change: Callable[..., Any] = change) -> Array:
            return sheet.attend(np.where(sheet.hidden, change(sheet.raw, c), sheet.raw))

        grid = np.concatenate([-np.geomspace(60, 0.25, 24), [0.0], np.geomspace(0.25, 30, 12)])
        at = least(misfit, lambda c, f=outputs: lambda sheet: f(sheet, c), grid) / LOG2_E
        at = _round(at)
        variant = sheets[0].problem.variant
        cap = float(variant.soft_cap or 0.0) if variant is not None else 0.0
        of_cap = cap > 0 and "are" in words and abs(at + cap) <= _NEARLY * cap
        yield Mistake(
            "hidden keys take part" + ", as with the soft cap after the mask" * of_cap,
            words.format(at),
            lambda sheet, f=outputs, c=at: f(sheet, c * LOG2_E),
        )


def shapes(sheets: list[Sheet]) -> Iterator[Mistake]:
    """Scores have the wrong sign, no sign, or are squared; or weights are no exponentials."""
    for words, change in (
        ("the wrong sign", np.negative),
        ("no sign", np.abs),
        ("no negative values, as after relu", lambda x: np.maximum(x, 0.0)),
        ("their square", lambda x: x * x / LOG2_E),
    ):
        yield Mistake(
            f"scores have {words}", "", lambda sheet, f=change: _masked(sheet, f(sheet.raw))
        )
    for words, weights in (
        ("sigmoid", lambda s: 1 / (1 + np.exp2(-s))),
        ("1 + s, an exp of first order", lambda s: np.maximum(1 + s / LOG2_E, 0.0)),
        ("relu", lambda s: np.maximum(s, 0.0)),
    ):
        yield Mistake(
            "weights are no exponential",
            words,
            lambda sheet, f=weights: _averaged(sheet, np.where(sheet.hidden, 0.0, f(sheet.raw))),
        )
    yield Mistake("softmax applied twice", "to its own weights", _twice)


def _twice(sheet: Sheet) -> Array:
    p = sheet.weights / sheet.weights.sum(1, keepdims=True)
    return _averaged(sheet, np.where(sheet.hidden, 0.0, np.exp(p)))


def _averaged(sheet: Sheet, p: Array) -> Array:
    with np.errstate(invalid="ignore", divide="ignore"):
        return p @ sheet.v / p.sum(1, keepdims=True)


def steps(sheets: list[Sheet]) -> Iterator[Mistake]:
    """P is rounded to equal steps, as for an 8-bit product with one scale for all of P."""
    for n in _STEPS:
        for kind in ("unrounded", "rounded"):
            for of, way in (("nearest", np.rint), ("below", np.floor)):
                yield Mistake(
                    f"P in steps of 1 / {n}" + ", as in 8 bits" * (n in _EIGHT_BITS),
                    f"to the {of}, divided by the sum of {kind} P",
                    lambda sheet, n=n, k=kind, w=way: _stepped(sheet, n, k, w),
                    precision=True,
                )


def _stepped(sheet: Sheet, n: int, kind: str, way: Callable[..., Any]) -> Array | None:
    if sheet.has_sink:
        return None
    p = way(sheet.weights * n) / n
    return p @ sheet.v / (p if kind == "rounded" else sheet.weights).sum(1, keepdims=True)


def score_steps(sheets: list[Sheet]) -> Iterator[Mistake]:
    """Scores or exponents are rounded to equal steps, as for a table of exponentials."""
    for n in _SCORE_STEPS:
        for unit, words in ((1.0, "in log2 units"), (LOG2_E, "in natural units")):
            for of, way in (("nearest", np.rint), ("below", np.floor)):
                for less, top in (("", lambda sheet: 0.0), (" less the maximum", _top)):
                    yield Mistake(
                        f"scores rounded to steps of 1 / {n}",
                        f"to the {of}, {words}{less}",
                        lambda sheet, u=unit / n, w=way, t=top: sheet.attend(
                            w((sheet.scores - t(sheet)) / u) * u
                        ),
                        precision=True,
                    )


ALL = (of_cuts, of_weak_mask)
WITHOUT_NUMBERS = (shapes, steps, score_steps)
