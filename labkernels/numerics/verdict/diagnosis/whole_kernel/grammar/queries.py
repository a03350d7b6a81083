"""Wrong readings of Q: zeros, other rows, in all channels or some."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.grammar.tensors import parts_of_channels
from labkernels.numerics.verdict.diagnosis.whole_kernel.grammar.terms import (
    Reading,
    Terms,
    by_keys,
    by_some_channels,
)
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet, queries_of

_STEPS = 4


def of_queries(sheet: Sheet) -> Iterator[Reading]:
    """Yield queries of other rows or other numbers, in all channels and then in some."""
    changes = dict(_changes(sheet))
    for (name, where), change in changes.items():
        yield Reading(name, where, _of(change), 1.0)
    for said, some in parts_of_channels(sheet.q.shape[1]):
        for (name, where), change in changes.items():
            told = "; ".join(filter(None, (said, where)))
            # channels that are 0 or negated in K have the same effect and readings of their own
            if "read as 0" not in name and "sign" not in name:
                yield Reading(f"{name}, in some channels", told, _of(change, some), 2.0)


def _changes(sheet: Sheet) -> Iterator[tuple[tuple[str, str], Callable[..., Any]]]:
    problem = sheet.problem
    heads, batch = problem.q.shape[1], problem.batch
    longest = int(np.diff(problem.q_ends).max())
    yield ("Q read as 0", ""), lambda s: np.zeros_like(s.q)
    yield ("Q without its sign", "its absolute value"), lambda s: np.abs(s.q)
    yield ("Q with the wrong sign", ""), lambda s: -s.q
    for axis, what in ((0, "queries of its head"), (1, "heads of its token"), (2, "channels")):
        where = f"that over the {what}"
        yield ("Q less its mean", where), lambda s, a=axis: _less_mean(s, a)
    for step in range(1, min(heads, 2 * _STEPS)):
        where = f"head h has that of head (h + {step}) % {heads}"
        yield ("Q of another row", where), lambda s, d=step: _row(s, head=d)
    for step in range(1, min(longest, _STEPS)):
        for way in (step, -step):
            where = f"query i has that of query i {way:+d}"
            yield ("Q of another row", where), lambda s, d=way: _row(s, query=d)
    for step in range(1, min(batch, _STEPS)):
        where = f"sample b has that of sample (b + {step}) % {batch}"
        yield ("Q of another row", where), lambda s, d=step: _row(s, sample=d)


def _less_mean(sheet: Sheet, axis: int) -> Array:
    """Return queries less their mean over the request's queries, over heads or over channels."""
    if axis == 2:
        return sheet.q - sheet.q.mean(1, keepdims=True)

    def found() -> Array:
        problem = sheet.problem
        tokens = np.arange(*(int(problem.q_ends[sheet.request + i]) for i in (0, 1)))
        return queries_of(problem, tokens, slice(None)).mean(axis)

    mean = sheet.once(("mean of q", axis), found)
    return sheet.q - mean[sheet.heads if axis == 0 else sheet.queries]


def _row(sheet: Sheet, head: int = 0, query: int = 0, sample: int = 0) -> Array | None:
    problem, ends = sheet.problem, sheet.problem.q_ends
    request = (sheet.request + sample) % problem.batch
    first, count = int(ends[request]), int(ends[request + 1] - ends[request])
    if not count:
        return None
    token = (sheet.tokens - int(ends[sheet.request]) + query) % count + first
    return queries_of(problem, token, (sheet.heads + head) % problem.q.shape[1])


def _of(change: Callable[..., Any], some: Array | None = None) -> Callable[..., Any]:
    def of(sheet: Sheet) -> Terms | None:
        q = change(sheet)
        if q is None:
            return None
        if some is None:
            return by_keys(sheet, sheet.k, q=q)
        return by_some_channels(sheet, q[:, some], sheet.k[:, some], some)

    return of
