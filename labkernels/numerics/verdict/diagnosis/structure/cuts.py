"""Scores that are cut at another number in each row, by a clamp or a threshold."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.structure.gathered import Block
from labkernels.numerics.verdict.diagnosis.structure.linear import LEFT, SMALLER_BY
from labkernels.numerics.verdict.diagnosis.structure.weights import Found
from labkernels.units import LOG2_E

_NAMES = (
    "small weights dropped, in each row below a number of its own",
    "scores clamped, in each row to at most a number of its own",
    "scores clamped, in each row to at least a number of its own",
)
_ROWS = 12  # most rows of a block
_GROWN_MOST = 1e3  # largest growth of a variance


def of_rows(blocks: list[Block], was: float) -> Iterator[Found]:
    """Fit one number for each row, at which its scores are cut."""
    equations = 0
    squares: list[list[float]] = [[], [], []]
    cuts: list[list[float]] = [[], [], []]
    for block in blocks:
        rows = np.unique(np.linspace(0, len(block.sheet.tokens) - 1, _ROWS).astype(int))
        for row in rows.tolist():
            equations += block.sheet.out.shape[1]
            for way, (square, cut) in enumerate(_of_row(block, row)):
                squares[way].append(square)
                cuts[way].append(cut)
    for name, errors, numbers in zip(_NAMES, squares, cuts, strict=True):
        rms = float(np.sqrt(np.sum(errors) / max(equations - len(errors), 1)))
        if rms <= LEFT and rms * SMALLER_BY <= was:
            told = ", ".join(f"{x / LOG2_E:.3g}" for x in numbers[:3])
            yield Found(name, f"{told}, ...", rms)
            return


def _of_row(block: Block, row: int) -> Iterator[tuple[float, float]]:
    """Yield sum z^2 and the number for each of _NAMES; keys are summed by falling score."""
    s = block.sheet.raw[row][block.seen[row]]
    v = block.v[block.seen[row]]
    order = np.argsort(-s, kind="stable")
    s, v = s[order], v[order]
    p = np.exp2(s - s[0])
    out, sigma = block.sheet.out[row], block.sigma[row]
    sums = np.concatenate([p[:, None] * v, p[:, None]], 1).cumsum(0)
    plain = np.concatenate([v, np.ones((len(v), 1))], 1).cumsum(0)

    def missed(total: Array) -> Array:
        return (((total[:, :-1] / total[:, -1:] - out) / sigma) ** 2).sum(1)

    # fewer keys share the weight, so that P's errors grow
    squares = (p[:, None] ** 2 * v**2).cumsum(0) / sums[:, -1:] ** 2
    grown = np.clip(squares / np.maximum(squares[-1:], 1e-300), 1.0, _GROWN_MOST)
    each = sums[:, :-1] / sums[:, -1:]
    dropped = (((each - out) / sigma) ** 2 / grown).sum(1)
    i = int(np.where(np.isfinite(dropped), dropped, np.inf).argmin())
    yield float(dropped[i]), float(s[i])
    low, high = np.append(s[1:], -np.inf), s
    yield _clamped(plain, sums[-1] - sums, out, sigma, missed, low - s[0], high - s[0], s[0])
    flat = np.concatenate([np.zeros((1, plain.shape[1])), plain])[:-1]
    kept = np.concatenate([np.zeros((1, sums.shape[1])), sums])[:-1]
    low, high = s, np.insert(s[:-1], 0, np.inf)
    yield _clamped(plain[-1] - flat, kept, out, sigma, missed, low - s[0], high - s[0], s[0])


def _clamped(
    flat: Array,
    rest: Array,
    out: Array,
    sigma: Array,
    missed: Callable[..., Any],
    low: Array,
    high: Array,
    top: float,
) -> tuple[float, float]:
    """Return the least sum z^2 and its cut: any number of keys is clamped to one fitted weight."""
    a, b = ((x[:, :-1] - x[:, -1:] * out) / sigma for x in (flat, rest))
    weight = -(a * b).sum(1) / np.maximum((a * a).sum(1), 1e-300)
    slack = 1e-3
    with np.errstate(divide="ignore", invalid="ignore"):
        cut = np.log2(weight)
    good = (weight > 0) & (cut >= low - slack) & (cut <= high + slack)
    miss = missed(weight[:, None] * flat + rest)
    miss = np.where(good & np.isfinite(miss), miss, np.inf)
    i = int(miss.argmin())
    return float(miss[i]), float(cut[i] + top)
