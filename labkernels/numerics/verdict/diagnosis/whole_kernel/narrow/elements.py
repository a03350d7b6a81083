"""Numbers of K, V or Q that are dropped, wrap around, are normed or turned by a Hadamard matrix.

Functions take sheets and a misfit, as those of `fitted` do.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array, erf
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit, best, least
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet
from labkernels.units import LOG2_E

_TENSORS = ("K", "V", "Q", "K and V", "Q and K")
_HOPELESS = 0.5  # part of mean z^2 that the best number of the grid leaves if it is not refined
_TINY = 1e-30
Change = Callable[..., Any]  # of K or V [L, D], or of Q [R, D]


def _outputs(sheet: Sheet, what: str, change: Change) -> Array:
    scores, v = sheet.scores, sheet.v
    if "Q" in what or "K" in what:
        q = change(sheet.q / _unit(sheet)) * _unit(sheet) if "Q" in what else sheet.q
        k = change(sheet.k) if "K" in what else sheet.k
        scores = sheet.masked(sheet.shaped(q @ k.T))
    return sheet.attend(scores, change(v) if "V" in what else v)


def _unit(sheet: Sheet) -> float:
    return sheet.problem.scale * LOG2_E


def _deviation(x: Array, axis: int | None) -> Array:
    return np.maximum(x.std(axis, keepdims=True), _TINY)


_NORMS: dict[str, Change] = {
    "less its mean, divided by its deviation: over the channels": lambda x: (
        (x - x.mean(1, keepdims=True)) / _deviation(x, 1)
    ),
    "divided by its deviation over the channels": lambda x: x / _deviation(x, 1),
    "divided by its largest number over the channels": lambda x: (
        x / np.maximum(np.abs(x).max(1, keepdims=True), _TINY)
    ),
    "divided by its sum over the channels": lambda x: x / x.sum(1, keepdims=True),
    "divided by its length twice": lambda x: x / np.maximum((x**2).sum(1, keepdims=True), _TINY),
    "divided by its root mean square": lambda x: (
        x / np.sqrt(np.maximum((x**2).mean(1, keepdims=True), _TINY))
    ),
    "divided by its length": lambda x: x / np.sqrt(np.maximum((x**2).sum(1, keepdims=True), _TINY)),
    "through a softmax over the channels": lambda x: (
        np.exp(x - x.max(1, keepdims=True))
        / np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True)
    ),
}
_OVER_KEYS: dict[str, Change] = {
    "less its mean, divided by its deviation: over the keys": lambda x: (
        (x - x.mean(0)) / _deviation(x, 0)
    ),
    "divided by its deviation over the keys": lambda x: x / _deviation(x, 0),
    "divided by its deviation, of the head": lambda x: x / _deviation(x, None),
    "divided by its largest number over the keys": lambda x: (
        x / np.maximum(np.abs(x).max(0), _TINY)
    ),
    "divided by its largest number, of the head": lambda x: x / max(np.abs(x).max(), _TINY),
    "divided by its length over the keys": lambda x: x / np.sqrt((x**2).sum(0) + _TINY),
    "divided by its root mean square over the keys": lambda x: x / np.sqrt((x**2).mean(0) + _TINY),
    "with sums over the keys before": lambda x: np.cumsum(x, 0),
    "with differences to the key before": lambda x: np.diff(x, axis=0, prepend=0 * x[:1]),
}


def _leaking(slope: float) -> Change:
    return lambda x: np.where(x < 0, slope * x, x)


_FUNCTIONS: dict[str, Change] = {
    "tanh": np.tanh,
    "a sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "x sigmoid(x)": lambda x: x / (1 + np.exp(-x)),
    "x sigmoid(1.702 x)": lambda x: x / (1 + np.exp(-1.702 * x)),
    "gelu": lambda x: x * (1 + erf(x / 2**0.5)) / 2,
    "gelu, by tanh": lambda x: x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2,
    "softplus": lambda x: np.logaddexp(0.0, x),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0.0))),
    "elu + 1": lambda x: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0.0))),
    "relu^2": lambda x: np.maximum(x, 0.0) ** 2,
    "x^2": np.square,
    "x |x|": lambda x: x * np.abs(x),
    "x^3": lambda x: x**3,
    "the root of |x|, with the sign of x": lambda x: np.sign(x) * np.sqrt(np.abs(x)),
    "x / (1 + |x|)": lambda x: x / (1 + np.abs(x)),
    "log(1 + |x|), with the sign of x": lambda x: np.sign(x) * np.log1p(np.abs(x)),
    "exp": np.exp,
    "sin": np.sin,
    **{f"x below 0 times {a:g}": _leaking(a) for a in (0.01, 0.1, 0.2, 0.5)},
    "to the sign alone": np.sign,
    "to whole numbers": np.rint,
    "to whole numbers, toward 0": np.trunc,
}


def _hadamard(x: Array, size: int) -> np.ndarray:
    """Return x with blocks of channels turned by a Hadamard matrix, of length 1."""
    whole = x.shape[1] // size * size
    h = np.ones((1, 1))
    while len(h) < size:
        h = np.block([[h, h], [h, -h]])
    blocks = x[:, :whole].reshape(len(x), -1, size) @ (h / size**0.5)
    return np.concatenate([blocks.reshape(len(x), -1), x[:, whole:]], 1)


def _turned(what: str, size: int) -> Callable[..., Any]:
    return lambda sheet: _outputs(sheet, what, lambda x: _hadamard(x, size))


def of_norms(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """K, V or Q is normed over its channels or keys, or turned by a Hadamard matrix."""
    if not isinstance(sheets[0].channels, slice):
        return
    width, found = min(sheets[0].k.shape[1], sheets[0].v.shape[1]), []
    for what in _TENSORS:
        norms = _NORMS if "Q" in what else _NORMS | _OVER_KEYS
        for words, change in norms.items():
            outputs = lambda sheet, w=what, f=change: _outputs(sheet, w, f)  # noqa: E731
            found.append(Mistake(f"{what} {words.split(':')[0]}", words, outputs, cost=1.0))
        for words, change in _FUNCTIONS.items():
            outputs = lambda sheet, w=what, f=change: _outputs(sheet, w, f)  # noqa: E731
            found.append(Mistake(f"{what} through another function", words, outputs, cost=1.0))
        for size in (2**n for n in range(1, 9)):
            if size <= width and what != "Q and K":  # both together change nothing
                where = f"in blocks of {size} channels, which nothing turns back"
                name = f"{what} turned by a Hadamard matrix"
                outputs = _turned(what, size)
                found.append(Mistake(name, where, outputs, cost=1.0))
    yield from best(misfit, found)


def _wrapped(x: Array, c: float, levels: int) -> np.ndarray:
    """Return integers of a step c / levels that wrap around, times the step."""
    step = c / levels
    return (np.mod(np.rint(x / step) + levels + 1, 2 * levels + 2) - levels - 1) * step


_LIMITS: dict[str, tuple[str, Callable[[np.ndarray, float], np.ndarray]]] = {
    "without its small numbers": (
        "those below {:.4g} are 0",
        lambda x, c: np.where(np.abs(x) < c, 0.0, x),
    ),
    "without its large numbers": (
        "those above {:.4g} are 0",
        lambda x, c: np.where(np.abs(x) > c, 0.0, x),
    ),
    "without its large positive numbers": (
        "those above {:.4g} are 0",
        lambda x, c: np.where(x > c, 0.0, x),
    ),
    "clipped from above": ("at {:.4g}", lambda x, c: np.minimum(x, c)),
    "clipped from below": ("at -{:.4g}", lambda x, c: np.maximum(x, -c)),
    "without its small numbers, the others less a threshold": (
        "{:.4g} is taken off sizes, down to 0",
        lambda x, c: np.sign(x) * np.maximum(np.abs(x) - c, 0.0),
    ),
    "in int8, which wraps": ("at {:.4g}", lambda x, c: _wrapped(x, c, 127)),
    "in int4, which wraps": ("at {:.4g}", lambda x, c: _wrapped(x, c, 7)),
}
_QUANTILES = np.concatenate([np.linspace(0.02, 0.9, 23), [0.93, 0.95, 0.97, 0.98, 0.99, 0.995]])


def _cut(what: str, of: Callable[..., Any]) -> Callable[[float], Callable[..., Any]]:
    return lambda c: lambda sheet: _outputs(sheet, what, lambda x: of(x, abs(c)))


def of_limits(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Numbers beyond a limit, which is fitted, are 0 or wrap; so are those within it."""
    before = misfit(lambda sheet: None)
    for what, (name, (words, of)) in itertools.product(_TENSORS[:4], _LIMITS.items()):
        own = np.concatenate(
            [
                np.abs({"K": s.k, "V": s.v, "Q": s.q / _unit(s), "K and V": s.k}[what]).ravel()
                for s in sheets
            ]
        )
        grid = np.unique(np.quantile(own, _QUANTILES))
        if "wraps" in name:
            grid = np.unique(own.max() * np.linspace(0.3, 1.0, 29))
        if len(grid) < 3:
            continue

        cut = _cut(what, of)
        if min(misfit(cut(x), limit=before) for x in grid) > _HOPELESS * before:
            continue
        at = abs(least(misfit, cut, grid))
        yield Mistake(f"{what} {name}", words.format(at), cut(at), cost=2.0)


ALL = (of_norms, of_limits)
