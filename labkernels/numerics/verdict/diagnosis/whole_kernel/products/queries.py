"""Rows whose query is any other one of the batch, in all channels or in a run of them.

The rule by which a row finds its query is not known: the start of a request, an order of heads and
tokens, a slab. So each row is held against all queries, and the rule is read off what it found.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.products import screens
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet, part, queries_of

_MOST = 2**11  # queries that a row is held against
_NUMBERS = 2**29  # products and scores of queries and keys: with more, it would take seconds
_DIRECTIONS = 24  # channels by which the nearest query is found
_REACH = 6  # least directions in which keys move a row: with fewer, one of many queries may fit
_OFTEN = 0.9  # least share of the rows for which a rule holds
_FEWER = 4  # of the runs of channels, those of at least this part of all are tried
_SHOWN = 3
_LEFT, _SHARE = 4.0, 0.02  # mean z^2 that a run may leave, and its share of the mean z^2 before


def of_rows(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Each row has another query, in all channels or in some."""
    sheet = sheets[0]
    places = _places(sheet)
    width, rows = sheet.k.shape[1], sum(len(each.tokens) for each in sheets)
    if len(places) * sheet.kv_len * (width + rows) > _NUMBERS or len(places) < 2:
        return
    if np.median(np.concatenate([each.reach for each in sheets])) < _REACH:
        return
    worst = screens.worst(sheets)
    first = worst[0]
    before = float((((first.out - first.truth) / first.sigma) ** 2).mean())
    left = {some: _nearest(first, some)[1][0] for some in _runs(width)}
    for some in sorted(left, key=lambda each: left[each])[:2]:
        if not left[some] <= max(_LEFT, _SHARE * before):
            continue
        name = "Q of another row" + ", in some channels" * (some != (0, width))
        said = f"channels {some[0]} to {some[1] - 1}" if some != (0, width) else ""
        told = _rule(worst, some)
        yield Mistake(
            name,
            "; ".join(filter(None, (said, told))),
            lambda each, of=some: _with_nearest(each, of),
            cost=2.0,
        )


def _runs(width: int) -> list[tuple[int, int]]:
    """Return runs of channels, all of them first: [first, end) each."""
    sizes = [width // parts for parts in (2, 3, 4) if width % parts == 0]
    sizes += [size for size in (64, 32) if width > size and size * _FEWER >= width]
    found = [(0, width)]
    for size in dict.fromkeys(sizes):
        found += [(at, min(at + size, width)) for at in range(0, width, size)]
        found += [(size, width), (0, width - size)]
    return list(dict.fromkeys(found))


def _places(sheet: Sheet) -> np.ndarray:
    """Return tokens and heads of the queries that a row is held against. Shapes: [N, 2]."""
    problem = sheet.problem
    tokens, heads = int(problem.q_ends[-1]), problem.q.shape[1]
    every = np.array(list(itertools.product(range(tokens), range(heads))))
    if len(every) <= _MOST:
        return every
    own = np.isin(every[:, 1], sheet.heads)  # of the heads of a KV head alone
    return every[own][:_MOST]


def _nearest(row: Sheet, some: tuple[int, int]) -> tuple[Array, Array]:
    """Return the place and mean z^2 of each row's best query. Shapes: [R, 2], [R]."""
    places = _places(row)
    first, end = some
    q = row.once(("all queries", len(places)), lambda: _queries(row, places))
    others = q[:, first:end] @ row.k[:, first:end].T  # [N, L]
    at, misses = np.empty((len(row.tokens), 2), int), np.empty(len(row.tokens))
    lanes = np.unique(np.linspace(0, row.v.shape[1] - 1, _DIRECTIONS).astype(int))
    for i in range(len(row.tokens)):
        one = part(row, slice(i, i + 1))
        rest = one.q @ row.k.T - one.q[:, first:end] @ row.k[:, first:end].T
        seen = np.flatnonzero(~one.hidden[0])
        s = (
            one.shaped(others + rest)[:, seen]
            if row.problem.variant is None
            else (np.concatenate([one.shaped(x[None] + rest) for x in others])[:, seen])
        )
        top = np.maximum(s.max(1, keepdims=True), one.sink)
        p = np.exp2(s - top)
        o = p @ row.v[seen][:, lanes] / (p.sum(1, keepdims=True) + np.exp2(one.sink - top))
        miss = (((o - one.out[0, lanes]) / one.sigma[0, lanes]) ** 2).mean(1)
        best = int(np.where(np.isfinite(miss), miss, np.inf).argmin())
        at[i], misses[i] = places[best], miss[best]
    return at, misses


def _queries(sheet: Sheet, places: Array) -> np.ndarray:
    return queries_of(sheet.problem, places[:, 0], places[:, 1])


def _with_nearest(sheet: Sheet, some: tuple[int, int]) -> Array:
    """Return the outputs of each row with the query that comes nearest."""
    at, _ = _nearest(sheet, some)
    q = sheet.q.copy()
    q[:, slice(*some)] = _queries(sheet, at)[:, slice(*some)]
    return sheet.attend(sheet.masked(sheet.shaped(q @ sheet.k.T)))


def _rule(rows: list[Sheet], some: tuple[int, int]) -> str:
    """Return words for the steps from a row to its query, one rule or the steps of some rows."""
    found: list[tuple[int, int, int]] = []
    told = []
    for row in rows:
        (token, head), problem = _nearest(row, some)[0][0], row.problem
        request = int(problem.request_of[token])
        query = int(token - problem.q_ends[request])
        mine = row.request, int(row.queries[0]), int(row.heads[0])
        found.append((request - mine[0], query - mine[1], int(head) - mine[2]))
        place = problem.row_name(int(row.tokens[0]), mine[2])
        told.append(f"{place} has that of {problem.row_name(int(token), int(head))}")
    rule, count = Counter(found).most_common(1)[0]
    if count >= max(2, _OFTEN * len(found)):
        names = zip(("sample", "query", "head"), rule, strict=True)
        return "each row has that of " + ", ".join(f"{x} {d:+d}" for x, d in names if d)
    return "; ".join(told[:_SHOWN])


ALL: tuple[Callable[..., Iterator[Mistake]], ...] = (of_rows,)
