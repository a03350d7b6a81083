"""Finds weights that are another function of the score or of the right weight, by a spline."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.structure.gathered import Block
from labkernels.numerics.verdict.diagnosis.structure.operands import descended
from labkernels.numerics.verdict.diagnosis.structure.weights import Found
from labkernels.units import LOG2_E

_KNOTS = (6, 16, 48)  # pieces of the spline, tried in this order
_TOLD = 5  # values of the function that are told


def _score(block: Block) -> Array:
    return block.sheet.raw / LOG2_E


def _depth(block: Block) -> Array:
    return (block.sheet.raw - block.sheet.scores.max(1, keepdims=True)) / LOG2_E


def _weight(block: Block) -> Array:
    return np.where(block.seen, block.p, 0.0)


_OF: dict[str, Callable[..., Any]] = {
    "the score": _score,
    "the score less its row's maximum": _depth,
    "the weight itself": _weight,
}


def of_functions(blocks: list[Block], was: float) -> Iterator[Found]:
    """Look for what was added to the scores, as a function of one number of each key."""
    for words, of in _OF.items():
        seen = np.concatenate([of(block)[block.seen] for block in blocks])
        if not np.isfinite(seen).all():
            return
        for n in _KNOTS:
            knots = knots_of(seen, n)
            if knots is None:
                break

            def shapes(block: Block, knots: Array = knots, of: Callable[..., Any] = of) -> Array:
                each = [basis(of(block), knots)[..., :-1], _score(block)[..., None]]
                return np.concatenate([*each, _weight(block)[..., None]], -1)

            found = descended(blocks, shapes, len(knots) - 4 - 1 + 2, was)
            if found is None:
                continue
            x, rms = found
            at = np.quantile(seen, np.linspace(0.01, 1, _TOLD))
            bent = (basis(at, knots)[..., :-1] @ x[:-2]) / LOG2_E
            told = ", ".join(f"{f:+.3g} at {y:.3g}" for y, f in zip(at, bent, strict=True))
            where = f"scores times {1 + x[-2] / LOG2_E:.3g}, plus {told}"
            yield Found(f"weights are another function of {words}", where, rms, vague=True)
            return


def knots_of(values: Array, n: int) -> Array | None:
    """Return the knots of a cubic spline, clamped at both ends; None if the values are too few."""
    inner = np.unique(np.quantile(values, np.linspace(0, 1, n + 1)))
    if len(inner) < 3:
        return None
    return np.concatenate([[inner[0]] * 3, inner, [inner[-1]] * 3])


def basis(x: Array, knots: Array) -> np.ndarray:
    """Return the cubic B-splines at x. Shapes: x [...] -> [..., number of knots - 4]."""
    x = np.clip(x, knots[0], knots[-1] - 1e-12 * (knots[-1] - knots[0]))[..., None]
    found = ((x >= knots[:-1]) & (x < knots[1:])).astype(float)
    for degree in (1, 2, 3):
        n = len(knots) - degree - 1
        a, b = knots[:n], knots[degree + 1 :]
        low, high = knots[degree : degree + n] - a, b - knots[1 : n + 1]
        with np.errstate(divide="ignore", invalid="ignore"):
            up = np.where(low > 0, (x - a) / low, 0.0)
            down = np.where(high > 0, (b - x) / high, 0.0)
        found = up * found[..., :-1] + down * found[..., 1:]
    return found
