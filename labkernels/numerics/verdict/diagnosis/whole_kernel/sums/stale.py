"""Weights in the product with V that are not the tile's or the row's own: a stale buffer of P.

Functions take sheets and a misfit, as those of `fitted` do.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit, best
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet, queries_of

_SIZES = (8, 12, 16, 20, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 192, 256)
_SOME: dict[str, Callable[..., Any]] = {
    "all tiles but the first": lambda t, last: t > 0,
    "odd tiles": lambda t, last: t % 2 == 1,
    "even tiles but the first": lambda t, last: (t % 2 == 0) & (t > 0),
    "the second tile": lambda t, last: t == 1,
    "the last tile": lambda t, last: (t == last) & (t > 0),
    "every fourth tile": lambda t, last: t % 4 == 3,
}
_FROM = {"the tile before": 1, "two tiles before": 2, "the tile behind": -1}
_STEPS = (1, -1, 2, -2, 4, -4, 8, -8)


def of_tiles(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Some tiles meet the weights of another tile."""
    if any(sheet.has_sink for sheet in sheets):
        return
    longest, found = max(sheet.kv_len for sheet in sheets), []
    for size, (which, some), (of, step), moves, both, whole in itertools.product(
        (n for n in _SIZES if n < longest),
        _SOME.items(),
        _FROM.items(),
        (True, False),
        (False, True),
        (True, False),
    ):
        given = size, some, step, moves, both, whole
        own = "its own" if moves else "the row's"
        where = f"{which} of {size} keys, those of {of}, relative to {own} maximum"
        where += ", in l too" * both + ", whole tiles alone" * whole
        outputs = lambda sheet, g=given: _of_tile(sheet, *g)  # noqa: E731
        found.append(Mistake("weights are those of another tile", where, outputs, cost=1.0))
    yield from best(misfit, found)


def _of_tile(
    sheet: Sheet,
    size: int,
    some: Callable[..., Any],
    step: int,
    moves: bool,
    both: bool,
    whole: bool,
) -> Array:
    n = sheet.kv_len
    key = np.arange(n)
    tile, at = key // size, key - step * size
    chosen = some(tile, tile[-1]) & (at >= 0) & (at < n)
    if whole:
        chosen &= tile < n // size
    at = np.where(chosen, at, key)
    p = sheet.weights[:, at]
    if moves:  # the buffer is relative to the maximum of its own step
        starts = np.arange(0, n, size)
        tops = np.maximum.accumulate(np.maximum.reduceat(sheet.scores, starts, axis=1), 1)
        tops = np.where(np.isfinite(tops), tops, 0.0)
        p = np.where(chosen, p * np.exp2(tops[:, tile] - tops[:, at // size]), p)
    return p @ sheet.v / (p if both else sheet.weights).sum(1, keepdims=True)


def of_rows(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """The product with V has the weights of another row, under the row's own denominator."""
    problem = sheets[0].problem
    if problem.variant is not None:
        return
    heads, longest = problem.q.shape[1], int(np.diff(problem.q_ends).max())
    ways = [(step, 0) for step in _STEPS if abs(step) < longest]
    ways += [(0, step) for step in range(1, min(heads, 9))]
    found = []
    for queries, over in ways:
        said = f"query i has those of query i {queries:+d}" if queries else ""
        said = said or f"head h has those of head (h + {over}) % {heads}"
        outputs = lambda sheet, a=queries, b=over: _of_row(sheet, a, b)  # noqa: E731
        where = f"{said}, over the row's own l"
        found.append(Mistake("weights are those of another row", where, outputs, cost=1.0))
    yield from best(misfit, found)


def _of_row(sheet: Sheet, queries: int, heads: int) -> Array:
    problem, ends = sheet.problem, sheet.problem.q_ends
    first, count = int(ends[sheet.request]), int(np.diff(ends)[sheet.request])
    place = sheet.tokens - first + queries
    token = np.where((place >= 0) & (place < count), place, sheet.tokens - first) + first
    head = (sheet.heads + heads) % problem.q.shape[1]
    q = queries_of(problem, token, head)
    s = np.empty_like(sheet.scores)
    for own in np.unique(head // problem.group):
        rows = head // problem.group == own
        s[rows] = q[rows] @ sheet.keys("k", int(own)).T
    s = np.where(np.arange(sheet.kv_len) >= problem.n_keys[token][:, None], -np.inf, s)
    p = np.exp2(s - s.max(1, keepdims=True))
    return p @ sheet.v / sheet.weights.sum(1, keepdims=True)


ALL = (of_tiles, of_rows)
