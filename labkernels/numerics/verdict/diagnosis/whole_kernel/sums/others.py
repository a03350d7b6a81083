"""Partial outputs of splits that are those of another head, query or request.

A row is the sum of its splits' outputs by their shares. What a split's output of another row
changes is linear in how often it is read, so that a fit finds the splits that are another row's.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Cut, Sheet

_CUTS = (*(Cut(-n) for n in (2, 3, 4, 5, 6, 7, 8, 16)), *(Cut(n) for n in (64, 32, 128, 16, 256)))
_UP = (2, 3, 4, 5, 6, 7, 8, 16)  # numbers of splits, the last one shorter
_WHOLE = 0.1  # largest distance of a factor from 0 or 1
_SMALLER_BY = 9.0
_NUMBERS = 2**21  # rows times keys: with more, it would take seconds
_MOST = 16  # most splits

Steps = tuple[int, int, int]  # of a head, a query and a request


def _steps(sheet: Sheet) -> Iterator[tuple[str, Steps]]:
    problem = sheet.problem
    heads, group = problem.q.shape[1], problem.group
    longest = int(np.diff(problem.q_ends).max())
    for step in dict.fromkeys((1, -1, 2, -2, group, -group)):
        if heads > 1 and step % heads:
            yield f"head {step:+d}", (step, 0, 0)
    for step in (1, -1, 2, -2, 8, -8) if longest > 1 else ():
        yield f"query {step:+d}", (0, step, 0)
    for step in (1, -1) if problem.batch > 1 else ():
        yield f"sample {step:+d}", (0, 0, step)


def _of_others(sheet: Sheet, steps: Steps) -> Iterator[tuple[Array, Sheet]]:
    """Yield rows of the sheet, and a sheet that has the rows that they are mixed up with."""
    problem, ends = sheet.problem, sheet.problem.q_ends
    request = (sheet.request + steps[2]) % problem.batch
    count = int(ends[request + 1] - ends[request])
    if not count:
        return
    tokens = (sheet.queries + steps[1]) % count + int(ends[request])
    heads = (sheet.heads + steps[0]) % problem.q.shape[1]
    for kv_head in np.unique(heads // problem.group).tolist():
        mine = np.flatnonzero(heads // problem.group == kv_head)
        own = {name: getattr(sheet, name)[mine] for name in ("out", "truth", "sigma")}
        place = {"request": request, "kv_head": kv_head}
        yield (
            mine,
            replace(sheet, tokens=tokens[mine], heads=heads[mine], notes={}, **place, **own),
        )


def _cuts(n: int) -> list[Cut]:
    cuts = [*_CUTS, *(Cut(-(-n // count)) for count in _UP)]
    return [cut for cut in dict.fromkeys(cuts) if 2 <= len(cut.starts(n)) <= _MOST]


def _parts(sheet: Sheet, cut: Cut) -> tuple[Array, Array]:
    """Return the shares of splits and their outputs. Shapes: [R, S], [R, S, Dv]."""
    starts = cut.starts(sheet.kv_len)
    p = sheet.weights
    l = np.add.reduceat(p, starts, 1)
    ends = zip(starts, np.append(starts[1:], sheet.kv_len), strict=True)
    o = np.stack([p[:, first:end] @ sheet.v[first:end] for first, end in ends])
    total = l.sum(1, keepdims=True) + np.exp2(sheet.sink - sheet.scores.max(1, keepdims=True))
    each = np.moveaxis(o, 0, 1) / np.where(l > 0, l, 1.0)[..., None]
    return l / total, each


def _changes(sheet: Sheet, cut: Cut, steps: Steps) -> Array | None:
    """Return by how much a row changes if a split's output is another row's. Shapes: [R, S, Dv]."""
    shares, own = _parts(sheet, cut)
    found = np.zeros_like(own)
    done = 0
    for rows, other in _of_others(sheet, steps):
        _, each = _parts(other, cut)
        if each.shape[1] != own.shape[1]:
            return None
        found[rows] = shares[rows][..., None] * (each - own[rows])
        done += len(rows)
    return found if done == len(own) else None


def of_outputs(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Some splits' outputs are those of another row, by the right shares."""
    if sum(len(sheet.tokens) * sheet.kv_len for sheet in sheets) > _NUMBERS:
        return
    if not isinstance(sheets[0].channels, slice):
        return
    before = sum(float((((s.out - s.truth) / s.sigma) ** 2).sum()) for s in sheets)
    for words, steps in _steps(sheets[0]):
        for cut in _cuts(sheets[0].kv_len):
            factors = _fitted(sheets, cut, steps, before)
            if factors is None:
                continue
            some = np.flatnonzero(factors > 0.5)
            if not len(some) or len(some) == len(factors):
                continue
            said = f"split {', '.join(map(str, some))} of {len(factors)} ({cut.words})"
            yield Mistake(
                "partial outputs of another row",
                f"{said} has that of {words}",
                lambda s, c=cut, d=steps, x=some: _outputs(s, c, d, x),
                cost=1.5,
            )


def _fitted(sheets: list[Sheet], cut: Cut, steps: Steps, before: float) -> Array | None:
    """Return how often each split's output is another row's, if that is 0 or 1 for each."""
    n = len(cut.starts(sheets[0].kv_len))
    square, side = np.zeros((n, n)), np.zeros(n)
    for sheet in sheets:
        changes = _changes(sheet, cut, steps)
        if changes is None or changes.shape[1] != n:
            return None
        a = np.moveaxis(changes / sheet.sigma[:, None], 1, 2).reshape(-1, n)
        square += a.T @ a
        side += a.T @ ((sheet.out - sheet.truth) / sheet.sigma).ravel()
    if not (np.isfinite(square).all() and np.isfinite(side).all()):  # a row without rounding
        return None
    x = np.linalg.lstsq(square, side, rcond=1e-9)[0]
    left = before - 2 * x @ side + x @ square @ x
    near = np.rint(x)
    whole = np.isin(near, (0, 1)).all() and np.abs(x - near).max() <= _WHOLE
    return near if whole and left * _SMALLER_BY <= before else None


def _outputs(sheet: Sheet, cut: Cut, steps: Steps, some: Array) -> Array | None:
    changes = _changes(sheet, cut, steps)
    if changes is None or some.max() >= changes.shape[1]:
        return None
    return sheet.truth + changes[:, some].sum(1)


ALL = (of_outputs,)
