"""Other functions in the place of exp and of a soft cap's tanh, in both sums or in one alone.

Functions take sheets and a misfit, as those of `fitted` do.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array, erf
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit, best, least
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet
from labkernels.units import LOG2_E

_POWERS = (2, 3, 4, 8, 16, 32, 64, 128, 256)
_TERMS = (2, 3, 4, 5, 6, 7, 8)
_SUMS = {"": (True, True), ", in the output alone": (True, False), ", in l alone": (False, True)}
_DEPTHS = -np.geomspace(0.02, 12, 25)  # of clamped exponents, in natural units

Function = Callable[..., Any]
_CUTS: dict[str, Function] = {
    "exponents clamped: s - max to at most {:.4g}": np.minimum,
    "exponents clamped: s - max to at least {:.4g}": np.maximum,
    "small weights dropped: s - max below {:.4g}": lambda x, c: np.where(x < c, -np.inf, x),
}


def _taylor(x: Array, terms: int) -> Array:
    found = np.ones_like(x)
    for k in range(terms, 0, -1):
        found = 1 + x / k * found
    return found


def _chord(x: Array, up: float = 0.0) -> Array:
    """Return exp(x) by straight lines between powers of two, each a factor higher or lower."""
    y = np.clip(x * LOG2_E, -1e3, 1e3)
    whole = np.floor(y)
    return np.exp2(whole) * (1 + y - whole + up)


def _anywhere() -> Iterator[tuple[str, Function]]:
    """Yield functions that stand for exp at scores, and at scores less their maximum."""
    for n in _POWERS:
        yield f"(1 + x / {n})^{n}", lambda x, n=n: np.maximum(1 + x / n, 0.0) ** n
        yield f"1 / (1 - x / {n})^{n}", lambda x, n=n: (1 - np.minimum(x / n, 0.99)) ** -n
    for n in _TERMS:
        yield f"exp of {n} terms of its series", lambda x, n=n: np.maximum(_taylor(x, n), 0.0)
        yield f"exp of {n} terms of its series, below 0 too", lambda x, n=n: _taylor(x, n)
    for up in (0.0, -0.0430, -0.0573, -0.0287):
        said = f", {up:g} of them off" if up else ""
        yield f"straight lines between powers of 2{said}", lambda x, u=up: _chord(x, u)
    yield "powers of 2 alone, cut", lambda x: np.exp2(np.floor(x * LOG2_E))
    yield "powers of 2 alone, the nearest", lambda x: np.exp2(np.rint(x * LOG2_E))
    yield "2^x in place of exp(x)", lambda x: np.exp2(x)
    yield "exp(-x^2 / 2)", lambda x: np.exp(-(x**2) / 2)
    yield "exp(-x^2)", lambda x: np.exp(-(x**2))
    yield "1 / (1 + x^2)", lambda x: 1 / (1 + x**2)
    yield "1 / (1 + |x|)", lambda x: 1 / (1 + np.abs(x))


def _of_scores() -> Iterator[tuple[str, Function]]:
    """Yield functions of scores that are positive, or nearly so, without exp."""
    yield "softplus, log(1 + exp(x))", lambda x: np.logaddexp(0.0, x)
    yield "softplus^2", lambda x: np.logaddexp(0.0, x) ** 2
    yield "elu + 1", lambda x: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0.0)))
    yield "relu^2", lambda x: np.maximum(x, 0.0) ** 2
    yield "relu^3", lambda x: np.maximum(x, 0.0) ** 3
    yield "relu + 1", lambda x: np.maximum(x, 0.0) + 1
    yield "|x|", np.abs
    yield "x^2", np.square
    yield "x^4", lambda x: x**4
    yield "exp(x) - 1", np.expm1
    yield "exp(x) + 1", lambda x: np.exp(x) + 1
    yield "cosh(x)", np.cosh
    yield "1 + tanh(x)", lambda x: 1 + np.tanh(x)
    yield "1 + x / (1 + |x|)", lambda x: 1 + x / (1 + np.abs(x))
    yield "x sigmoid(x)", lambda x: x / (1 + np.exp(-x))
    yield "sigmoid^2", lambda x: (1 + np.exp(-x)) ** -2.0
    yield "log(1 + relu)", lambda x: np.log1p(np.maximum(x, 0.0))


def _summed(sheet: Sheet, x: Array, of: Function, sums: tuple[bool, bool], top: Array) -> Array:
    """Return rows whose weights, relative to top, are of(x) in the output, in l or in both."""
    p = np.where(sheet.hidden, 0.0, of(np.where(sheet.hidden, 0.0, x)))
    right = np.exp2(sheet.scores - top)
    above, below = (p if some else right for some in sums)
    l = below.sum(1, keepdims=True) + np.exp2(sheet.sink - top)
    return above @ sheet.v / l


def of_exp(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Weights are another function of the score, or of the score less its maximum."""
    found = []
    for (words, of), (where, sums) in itertools.product(_anywhere(), _SUMS.items()):

        def less(sheet: Sheet, f: Function = of, s: tuple[bool, bool] = sums) -> Array:
            top = sheet.scores.max(1, keepdims=True)
            return _summed(sheet, (sheet.scores - top) / LOG2_E, f, s, top)

        found.append(Mistake("weights are no exponential", f"{words}, of x = s - max{where}", less))
    for words, of in itertools.chain(_anywhere(), _of_scores()):

        def plain(sheet: Sheet, f: Function = of) -> Array:
            top = np.zeros((len(sheet.tokens), 1))
            return _summed(sheet, sheet.raw / LOG2_E, f, (True, True), top)

        found.append(Mistake("weights are no exponential", f"{words}, of x = s", plain))
    yield from best(misfit, found)


def of_clamps(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Exponents are clamped at a number, which is fitted: in the output, in l or in both."""
    for (words, of), (where, sums) in itertools.product(_CUTS.items(), _SUMS.items()):
        if not where and "most" not in words:
            continue  # functions.of_cuts has these

        def cut(c: float, f: Function = of, s: tuple[bool, bool] = sums) -> Callable[..., Any]:
            def outputs(sheet: Sheet) -> Array:
                top = sheet.scores.max(1, keepdims=True)
                x = (sheet.scores - top) / LOG2_E
                return _summed(sheet, x, lambda x: np.exp(f(x, min(c, 0.0))), s, top)

            return outputs

        at = least(misfit, cut, _DEPTHS[::-1])
        name, told = words.format(at).split(": ")
        yield Mistake(name + where, told, cut(at), cost=0.5)


def of_references(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Exponents are relative to a part's maximum, which others may exceed, and end at 0."""
    for first, size in itertools.product((True, False), (1, 8, 16, 32, 64, 128)):
        if size >= max(sheet.kv_len for sheet in sheets):
            continue

        def outputs(sheet: Sheet, n: int = size, of_first: bool = first) -> Array:
            keys = np.arange(sheet.kv_len)[None]
            start = np.maximum((sheet.n_keys[:, None] - 1) // n * n, 0)
            some = keys < n if of_first else keys >= start
            top = np.where(some, sheet.scores, -np.inf).max(1, keepdims=True)
            top = np.where(np.isfinite(top), top, 0.0)
            return sheet.attend(np.minimum(sheet.scores - top, 0.0))

        whose = f"the {'first' if first else 'last'} {size} keys" if size > 1 else "a key alone"
        said = f"s - max to at most 0, of the maximum of {whose}"
        yield Mistake("exponents clamped", said, outputs, cost=1.0)


def _caps() -> Iterator[tuple[str, Function]]:
    """Yield functions that stand for tanh."""
    yield "x - x^3 / 3, of x between -1 and 1", lambda x: _cubed(np.clip(x, -1, 1))
    yield "x - x^3 / 3", _cubed
    yield "x - x^3 / 3 + 2 x^5 / 15", lambda x: _cubed(x) + 2 * x**5 / 15
    yield (
        "x - x^3 / 3 + 2 x^5 / 15, of x between -1 and 1",
        lambda x: _cubed(np.clip(x, -1, 1)) + 2 * np.clip(x, -1, 1) ** 5 / 15,
    )
    yield "x / (1 + |x|)", lambda x: x / (1 + np.abs(x))
    yield "x / sqrt(1 + x^2)", lambda x: x / np.sqrt(1 + x**2)
    yield "2 / pi atan(pi x / 2)", lambda x: 2 / np.pi * np.arctan(np.pi * x / 2)
    yield "2 / pi atan(x)", lambda x: 2 / np.pi * np.arctan(x)
    yield "atan(x)", np.arctan
    yield "tanh(tanh(x)), as of two caps", lambda x: np.tanh(np.tanh(x))
    yield "erf(x)", erf
    yield "erf(sqrt(pi) x / 2)", lambda x: erf(np.pi**0.5 / 2 * x)
    yield "sin(x)", np.sin
    yield "a sigmoid, 2 / (1 + exp(-x)) - 1", lambda x: np.tanh(x / 2)
    yield "tanh(2 x)", lambda x: np.tanh(2 * x)
    yield "a sigmoid, 1 / (1 + exp(-x))", lambda x: 1 / (1 + np.exp(-x))
    yield "sign(x) log(1 + |x|)", lambda x: np.sign(x) * np.log1p(np.abs(x))
    yield "asinh(x)", np.arcsinh
    yield "x (27 + x^2) / (27 + 9 x^2)", lambda x: x * (27 + x**2) / (27 + 9 * x**2)
    yield (
        "x (27 + x^2) / (27 + 9 x^2), at most 1",
        lambda x: np.clip(x * (27 + x**2) / (27 + 9 * x**2), -1, 1),
    )
    yield "x (15 + x^2) / (15 + 6 x^2)", lambda x: x * (15 + x**2) / (15 + 6 * x**2)
    yield "tanh(x) for x above 0, else 0", lambda x: np.tanh(np.maximum(x, 0.0))
    yield "tanh(x) for x above 0, else x", lambda x: np.where(x > 0, np.tanh(x), x)
    yield "tanh(x)^2", lambda x: np.tanh(x) ** 2
    yield "x tanh(x), as of s in the place of the cap", lambda x: x * np.tanh(x)
    yield "|tanh(x)|", lambda x: np.abs(np.tanh(x))
    yield "tanh(|x|)^(1/2), with the sign of x", lambda x: np.sign(x) * np.tanh(np.abs(x)) ** 0.5


def _cubed(x: Array) -> Array:
    return x - x**3 / 3


def of_caps(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """The soft cap that was asked for is another function than tanh."""
    variant = sheets[0].problem.variant
    if variant is None or variant.soft_cap is None or variant.alibi is not None:
        return
    cap = float(variant.soft_cap) * LOG2_E
    found = []
    for words, of in _caps():

        def outputs(sheet: Sheet, f: Function = of) -> Array:
            x = sheet.q @ sheet.k.T / cap
            return sheet.attend(np.where(sheet.hidden, -np.inf, cap * f(x)))

        name = "soft cap by another function than tanh"
        found.append(Mistake(name, f"{words}, x = s / {variant.soft_cap:g}", outputs))
    chosen = best(misfit, found)
    yield from (replace(mistake, cost=0.5) for mistake in chosen)


ALL = (of_exp, of_clamps, of_references, of_caps)
