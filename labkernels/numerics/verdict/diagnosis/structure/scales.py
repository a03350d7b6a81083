"""Finds a wrong scale: a factor on the scores of all rows or of each, or the lengths of Q and K."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.structure.gathered import Block
from labkernels.numerics.verdict.diagnosis.structure.linear import LEFT, SMALLER_BY, too_many
from labkernels.numerics.verdict.diagnosis.structure.operands import descended
from labkernels.numerics.verdict.diagnosis.structure.weights import Found
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import queries_of

_ROWS = 12  # most rows of a block
_GRID = np.concatenate([-np.geomspace(20, 0.02, 60), np.geomspace(0.02, 20, 60)])
_ONE = np.ones(1)
_ROUNDS = 9  # of a search, each with a tenth of the step of the round before
_ALIKE = 0.02  # numbers count as equal if they differ by less than this share


def of_scales(blocks: list[Block], was: float) -> Iterator[Found]:
    """Look for a factor on all scores (with lengths, and one on the output), or on each row's."""
    if blocks[0].sheet.problem.variant is not None or blocks[0].sheet.has_sink:
        return
    rows = [
        (block, row)
        for block in blocks
        for row in np.unique(
            np.linspace(0, len(block.sheet.tokens) - 1, _ROWS).astype(int)
        ).tolist()
    ]
    equations = sum(block.sheet.out.shape[1] for block, _ in rows)

    def explains(total: float, numbers: int) -> float:
        rms = float(np.sqrt(total / max(equations - numbers, 1)))
        return rms if rms <= LEFT and rms * SMALLER_BY <= was else np.inf

    plain, _ = _missed(
        [(block, row, _scores(block, row, "")) for block, row in rows], _ONE, one=False
    )
    if np.isfinite(explains(float(plain[0]), 1)):
        return  # a factor on the output alone explains it, which other modules name
    for name, lengths in _LENGTHS.items():
        scores = [(block, row, _scores(block, row, lengths)) for block, row in rows]
        x, total, factor = _least(scores)
        rms = explains(total, 2)
        if np.isfinite(rms):
            alone = abs(factor - 1) < _ALIKE / 10
            words = f"scores times {x:.4g}" + f", the output times {factor:.4g}" * (not alone)
            given = name or "wrong scale" + ", and the output by a factor" * (not alone)
            yield Found(given, words, rms)
            return
    reach = sum(int(block.sheet.reach[row]) for block, row in rows)
    if too_many(len(rows), reach):  # a row that moves in one direction fits any such number
        return
    each = [_least([(block, row, _scores(block, row, ""))], one=True) for block, row in rows]
    rms = explains(sum(total for _, total, _ in each), len(each))
    if np.isfinite(rms):
        own = np.array([x for x, _, _ in each])
        words = f"times {', '.join(f'{y:.4g}' for y in own[:4])}, ..."
        yield Found(f"wrong scale, another for each {_whose(rows, own)}", words, rms)


_LENGTHS = {
    "": "",
    "Q divided by its length": "q",
    "K divided by its length": "k",
    "Q and K divided by their lengths": "qk",
}


def _scores(block: Block, row: int, lengths: str) -> Array:
    """Return the scores of a row in log2 units, divided by the lengths that `lengths` names.

    Scores divided by the length of the query alone are set to a largest value of 8.
    """
    sheet = block.sheet
    s = sheet.raw[row]
    if "q" in lengths:
        s = s / max(np.linalg.norm(sheet.q[row]), 1e-300)
    if "k" in lengths:
        s = s / np.maximum(np.linalg.norm(sheet.k, axis=1), 1e-300)
    return s / max(np.abs(s[block.seen[row]]).max(), 1e-300) * 8 if lengths == "q" else s


def _least(rows: list[Any], *, one: bool = False) -> tuple[float, float, float]:
    """Return the best factor on the scores, the sum of z^2 that it leaves, and that on the output.

    one: the factor on the output is 1.
    """
    grid = _GRID
    for _ in range(_ROUNDS):
        total, factor = _missed(rows, grid, one=one)
        i = int(total.argmin())
        low, high = grid[max(i - 1, 0)], grid[min(i + 1, len(grid) - 1)]
        best = float(grid[i]), float(total[i]), float(factor[i])
        if grid is _GRID and not np.isfinite(total[i]):
            break
        grid = np.linspace(low, high, 21)
    return best


def _missed(rows: list[Any], grid: Array, *, one: bool) -> tuple[Any, ...]:
    """Return the sum of z^2 for each factor of a grid, and its best factor on the output."""
    plain, mixed, square = (np.zeros(len(grid)) for _ in range(3))
    for block, row, s in rows:
        seen = block.seen[row]
        scaled = grid[:, None] * s[seen]
        p = np.exp2(scaled - scaled.max(1, keepdims=True))
        o = p @ block.v[seen] / p.sum(1, keepdims=True) / block.sigma[row]
        out = block.sheet.out[row] / block.sigma[row]
        plain = plain + ((out - o) ** 2).sum(1)
        mixed, square = mixed + (o * (out - o)).sum(1), square + (o**2).sum(1)
    more = np.zeros_like(plain) if one else mixed / np.maximum(square, 1e-300)
    total = plain - 2 * more * mixed + more**2 * square
    return np.where(np.isfinite(total), np.maximum(total, 0.0), np.inf), 1 + more


def _whose(rows: list[Any], x: Array) -> str:
    """Return what shares a factor: "head", "token", or "row" if neither does.

    Factors that are all close to 1 are not alike for that.
    """
    off = float(np.abs(x - 1).max())
    for words, of in (("head", "heads"), ("token", "tokens")):
        groups: dict[int, list[float]] = {}
        for (block, row), y in zip(rows, x, strict=True):
            groups.setdefault(int(getattr(block.sheet, of)[row]), []).append(float(y))
        several = [g for g in groups.values() if len(g) > 1]
        if several and all(np.ptp(g) <= _ALIKE * off for g in several):
            return words
    return "row"


def of_slopes(blocks: list[Block], was: float) -> Iterator[Found]:
    """Look for one factor on the scores below 0, and another on those above."""

    def shapes(block: Block) -> Array:
        s = block.sheet.raw
        return np.stack([np.where(s < 0, s, 0.0), np.where(s >= 0, s, 0.0)], -1)

    found = descended(blocks, shapes, 2, was)
    if found is not None:
        x, rms = found
        where = f"scores times {1 + x[0]:.4g} below 0, times {1 + x[1]:.4g} above"
        yield Found("weights are another function of the score: two scales", where, rms)


def of_own_queries(blocks: list[Block], was: float) -> Iterator[Found]:
    """Look for a query that is a sum of its group's queries, by numbers that all tokens share."""
    group = blocks[0].sheet.problem.group
    if not 1 < group <= 8:
        return

    def shapes(block: Block) -> Array:
        sheet, problem = block.sheet, block.sheet.problem
        q = queries_of(problem, sheet.tokens, slice(None))
        own = q[:, sheet.kv_head * group : (sheet.kv_head + 1) * group]  # [R, G, D]
        products = np.einsum("rgd,ld->rlg", own, sheet.k)
        found = np.zeros((*products.shape[:2], group, group))
        member = sheet.heads % group
        found[np.arange(len(member)), :, member] = products
        return found.reshape(*products.shape[:2], -1)

    found = descended(blocks, shapes, group * group, was)
    if found is None:
        return
    x, rms = found
    table = x.reshape(group, group) + np.eye(group)
    told = ", ".join(f"{y:.3g}" for y in table[0])
    what = "the mean" if np.abs(table - 1 / group).max() < _ALIKE else "a sum"
    yield Found(f"Q is {what} of its group's queries", f"of the first head: {told}", rms)


ALL: tuple[Callable[..., Any], ...] = (of_scales, of_slopes, of_own_queries)
