"""An accumulator that begins with the sums of another head's or query's tile.

Functions take sheets and a misfit, as those of `fitted` do.
"""

import itertools
from collections.abc import Iterator

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit, best
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet, queries_of

_TILES = (8, 16, 32, 64, 128)
_STEPS = (1, -1, 2, -2)
_CHANNELS = 8  # least channels of a row: a factor of its own explains fewer


def of_tiles(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """What o begins with is a tile's sum of another row, by a factor that each row has of its own.

    The factor is fitted to every second channel of a row.
    """
    if any(sheet.problem.variant is not None for sheet in sheets):
        return
    if sheets[0].out.shape[1] < _CHANNELS:
        return
    problem = sheets[0].problem
    heads, longest = problem.q.shape[1], int(np.diff(problem.q_ends).max())
    steps = [(d, 0) for d in (*_STEPS, problem.group, -problem.group) if abs(d) < heads]
    steps += [(0, d) for d in _STEPS if abs(d) < longest]
    found = []
    for (over, later), size, first in itertools.product(
        dict.fromkeys(steps), _TILES, (True, False)
    ):
        whose = f"head h {over:+d}" if over else f"query i {later:+d}"
        what = "another head" if over else "another row"
        where = f"that of {whose}, its {'first' if first else 'last'} {size} keys"
        given = over, later, size, first
        outputs = lambda sheet, g=given: _begun(sheet, *g)  # noqa: E731
        name = f"o begins with the sums of a tile of {what}"
        found.append(Mistake(name, where, outputs, cost=1.5))
    yield from best(misfit, found)


def _begun(sheet: Sheet, over: int, later: int, size: int, first: bool) -> Array | None:
    problem, ends = sheet.problem, sheet.problem.q_ends
    begin, end = int(ends[sheet.request]), int(ends[sheet.request + 1])
    token = np.clip(sheet.tokens + later, begin, end - 1)
    head = (sheet.heads + over) % problem.q.shape[1]
    q, n = queries_of(problem, token, head), problem.n_keys[token]
    start = np.zeros(len(n), int) if first else (n - 1) // size * size
    key = np.arange(sheet.kv_len)
    seen = (key >= start[:, None]) & (key < np.minimum(start + size, n)[:, None])
    added = np.zeros_like(sheet.truth)
    for own in np.unique(head // problem.group).tolist():
        rows = head // problem.group == own
        s = np.where(seen[rows], q[rows] @ sheet.keys("k", own).T, -np.inf)
        added[rows] = np.exp2(s - s.max(1, keepdims=True)) @ sheet.keys("v", own)
    some = slice(None, None, 2)
    z, unit = ((x / sheet.sigma)[:, some] for x in (sheet.out - sheet.truth, added))
    with np.errstate(all="ignore"):
        factor = (z * unit).sum(1) / (unit**2).sum(1)
    return sheet.truth + np.nan_to_num(factor)[:, None] * added


ALL = (of_tiles,)
