"""The KV head and request that each query head reads, found head by head and without a rule.

Functions take sheets and a misfit, as those of `fitted` do.
"""

from collections.abc import Iterator

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet

_MOST = 64  # pairs of request and head that are tried
_KEYS = 2**17  # of all pairs
_LISTED = 6


def of_any(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """K, V or both come from the KV head and request that fit best, for each query head."""
    for what in ("K and V", "K", "V"):
        found = {}
        for sheet in sheets:
            for head in np.unique(sheet.heads):
                found[sheet.request, int(head)] = _nearest(sheet, int(head), what)
        moved = {key: of for key, of in found.items() if of is not None}
        if len(moved) < len(found) or not moved:
            continue
        other = any(of[0] != request for (request, _), of in moved.items())
        name = f"{what} of another {'request' if other else 'head'}"
        said = [
            f"head {head}{f' of sample {request}' if other else ''} reads KV head {of[1]}"
            + f" of sample {of[0]}" * other
            for (request, head), of in list(moved.items())[:_LISTED]
        ]
        where = ", ".join(said) + ", ..." * (len(moved) > _LISTED)
        yield Mistake(name, where, lambda sheet, m=moved, w=what: _reading(sheet, m, w))


def _nearest(sheet: Sheet, head: int, what: str) -> tuple[int, int] | None:
    """Return the request and KV head that come nearest to the rows of a head, if not its own."""
    problem, rows = sheet.problem, sheet.heads == head
    pairs = [
        (request, kv_head)
        for request in range(problem.batch)
        for kv_head in range(problem.kv_heads)
        if int(problem.kv_lens[request]) >= sheet.kv_len
    ]
    if len(pairs) > _MOST or len(pairs) * sheet.kv_len > _KEYS:
        own = sheet.request, sheet.kv_head
        pairs = [pair for pair in pairs if pair[0] == own[0] or pair[1] == own[1]][:_MOST]
    best, of = np.inf, None
    for pair in pairs:
        given = _of_source(sheet, pair, what)[rows]
        with np.errstate(invalid="ignore", divide="ignore"):
            miss = (((sheet.out[rows] - given) / sheet.sigma[rows]) ** 2).sum()
        if miss < best:
            best, of = float(miss), pair
    return None if of == (sheet.request, sheet.kv_head) else of


def _of_source(sheet: Sheet, pair: tuple[int, int], what: str) -> Array:
    request, head = pair
    place = "source", pair, what
    if place not in sheet.notes:
        k, v = (sheet.keys(which, head, request)[: sheet.kv_len] for which in "kv")
        scores = sheet.masked(sheet.shaped(sheet.q @ k.T)) if "K" in what else sheet.scores
        sheet.notes[place] = sheet.attend(scores, v if "V" in what else sheet.v)
    return sheet.notes[place]


def _reading(
    sheet: Sheet, moved: dict[tuple[int, int], tuple[int, int]], what: str
) -> Array | None:
    out = sheet.truth.copy()
    for head in np.unique(sheet.heads):
        of = moved.get((sheet.request, int(head)))
        if of is None:
            return None
        rows = sheet.heads == head
        out[rows] = _of_source(sheet, of, what)[rows]
    return out


ALL = (of_any,)
