"""The mask of a request read otherwise: by another stride, by other rows, with its bits reordered.

Functions take sheets and a misfit, as those of `fitted` do.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.products import screens
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet

_ALIGNED = (8, 16, 32, 64, 128)
_BLOCKS = (2, 4, 8, 16, 32, 64, 128)
_BITS = (1, 3, 7, 15, 31, 63, 8, 16, 24)
_STEPS = (1, -1, 2, -2, 3, -3, 4, -4, 8, -8, 16, -16)
_JUDGED = 6
_TINY = 1e-300  # in place of a division by 0
_NUMBERS = 2**26  # queries times keys of all rules: with more, it would take seconds

Rule = Callable[..., Any]  # of a mask [M, L], the row's query, head and group: hidden keys [L]


def _full(sheet: Sheet) -> np.ndarray:
    """Return which keys each query of the sheet's request does not see. Shapes: [M, L]."""

    def found() -> Array:
        first, end = (int(sheet.problem.q_ends[sheet.request + i]) for i in (0, 1))
        tokens = np.arange(first, end)
        heads = np.full(len(tokens), sheet.heads[0])
        empty = np.zeros((len(tokens), sheet.out.shape[1]))
        rows = replace(sheet, tokens=tokens, heads=heads, out=empty, truth=empty, notes={})
        return rows.hidden

    return sheet.once(("mask of all queries", int(sheet.heads[0])), found)


def _strides(m: int, n: int) -> list[tuple[str, int]]:
    found = [("the keys", n), ("the queries", m), ("the keys + 1", n + 1), ("the keys - 1", n - 1)]
    for size in _ALIGNED:
        found.append((f"the keys up to a multiple of {size}", -(-n // size) * size))
        found.append((f"the queries up to a multiple of {size}", -(-m // size) * size))
    return [(words, size) for words, size in found if size > 0]


def _by_stride(stored: int, read: int, seen: bool) -> Rule:
    """Return a rule for rows that lie `stored` bits apart, and are read `read` bits apart."""

    def of(mask: Array, query: int, head: int, group: int) -> Array:
        m, n = mask.shape
        row, key = np.divmod(query * read + np.arange(n), stored)
        there = (row < m) & (key < n)
        given = mask[np.where(there, row, 0), np.where(there, key, 0)]
        return np.where(there, given, not seen)

    return of


def _of_rows() -> Iterator[tuple[str, Callable[..., int]]]:
    """Yield which query's mask a query of m has, by its number i, its head and its group."""
    for size in _BLOCKS:
        yield f"the first query of each {size}", lambda i, m, h, g, b=size: i // b * b
        yield f"the last query of each {size}", lambda i, m, h, g, b=size: i // b * b + b - 1
        yield f"query i % {size}", lambda i, m, h, g, b=size: i % b
    for step in _STEPS:
        yield f"query i {step:+d}", lambda i, m, h, g, d=step: i + d
    yield "query i / 2", lambda i, m, h, g: i // 2
    yield "query 2 i", lambda i, m, h, g: 2 * i
    yield "the first query", lambda i, m, h, g: 0
    yield "the last query", lambda i, m, h, g: m - 1
    yield "the queries in reverse", lambda i, m, h, g: m - 1 - i
    yield "row i g + h, modulo the queries", lambda i, m, h, g: (i * g + h % g) % m
    yield "row i g + h, at most the last query", lambda i, m, h, g: i * g + h % g
    yield "row (h m + i) / g", lambda i, m, h, g: (h % g * m + i) // g
    yield "query i / g", lambda i, m, h, g: i // g
    yield "query i + h", lambda i, m, h, g: i + h % g
    yield "query i + h of all heads", lambda i, m, h, g: i + h


def _by_row(to: Callable[..., int]) -> Rule:
    def of(mask: Array, query: int, head: int, group: int) -> Array:
        return mask[min(max(to(query, len(mask), head, group), 0), len(mask) - 1)]

    return of


def _of_keys() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield which key's bit a key of n has; bits beyond the last key are hidden."""
    for bits in _BITS:
        yield f"key j xor {bits}", lambda j, n, x=bits: j ^ x
    for step in _STEPS:
        yield f"key j {step:+d}", lambda j, n, d=step: j + d
    for size in _BLOCKS:
        yield f"the first key of each {size}", lambda j, n, b=size: j // b * b
        yield f"the last key of each {size}", lambda j, n, b=size: j // b * b + b - 1
        yield f"the keys of each {size} in reverse", lambda j, n, b=size: j // b * b + b - 1 - j % b
        yield f"key j % {size}", lambda j, n, b=size: j % b
    yield "the keys in reverse", lambda j, n: n - 1 - j
    yield "key j / 2", lambda j, n: j // 2
    yield "key 2 j", lambda j, n: 2 * j


def _by_key(to: Callable[..., Any], beyond: bool) -> Rule:
    def of(mask: Array, query: int, head: int, group: int) -> Array:
        n = mask.shape[1]
        at = to(np.arange(n), n)
        there = (at >= 0) & (at < n)
        return np.where(there, mask[query][np.where(there, at, 0)], beyond)

    return of


def _turned(mask: Array, query: int, head: int, group: int) -> Array:
    """Return the mask of a query where that of the new keys is transposed."""
    m, n = mask.shape
    found = mask[query].copy()
    new = min(m, n)
    found[n - new :] = mask[m - new :, n - new + query] if query < new else True
    return found


def _rules(m: int, n: int) -> Iterator[tuple[str, Rule]]:
    for (wrote, stored), (said, read) in itertools.permutations(_strides(m, n), 2):
        if stored != read:
            words = f"rows lie {wrote} apart, and are read {said} apart"
            for seen in (False, True):
                yield words + "; bits between them are seen" * seen, _by_stride(stored, read, seen)
    for words, to in _of_rows():
        yield f"that of {words}", _by_row(to)
    for words, at in _of_keys():
        yield f"bit by bit that of {words}", _by_key(at, True)
        yield f"bit by bit that of {words}; beyond the end all are seen", _by_key(at, False)
    yield "that of the new keys is transposed", _turned


_JOINED: dict[str, Callable[[Array, Array], Any]] = {
    "": lambda own, other: other,
    "; what the right mask hides is hidden, too": np.logical_or,
    "; what the right mask shows is seen, too": np.logical_and,
}


def _hidden(sheet: Sheet, row: int, rule: Rule, joined: str, first: bool) -> np.ndarray:
    mask = _full(sheet)
    query, head = int(sheet.queries[row]), int(sheet.heads[row])
    given = rule(mask, query, head, sheet.problem.group)
    given = np.array(_JOINED[joined](mask[query], given), bool)
    given[0] &= not first
    return given


def of_masks(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Each query sees the keys that the mask, read by another rule, says."""
    if not any(sheet.hidden.any() for sheet in sheets):
        return
    worst = screens.worst(sheets)
    m, n = _full(worst[0]).shape
    if m < 2 or any(_full(sheet).shape != (m, n) for sheet in sheets):
        return
    rules = dict(_rules(m, n))
    ways = list(itertools.product(rules, _JOINED, (False, True)))[: _NUMBERS // n]
    total = np.zeros(len(ways))
    for row in worst:
        total += _left(row, rules, ways)
    for i in np.argsort(total, kind="stable")[:_JUDGED].tolist():
        words, joined, first = ways[i]
        if np.isfinite(total[i]):
            way = rules[words], joined, first
            yield Mistake(
                _effect(sheets, way),
                words + joined + "; the first key is always seen" * first,
                lambda sheet, way=way: _outputs(sheet, *way),
                cost=1.5,
            )


def _effect(sheets: list[Sheet], way: tuple[Rule, str, bool]) -> str:
    """Return a name that is true by whatever rule the mask is read, where it hides or shows alone.

    A mask that hides more than the right one may be read from elsewhere, or be the right mask and a
    second one: no output tells.
    """
    given = [_all_hidden(sheet, *way) for sheet in sheets]
    right = [sheet.hidden for sheet in sheets]
    if all((other | ~own).all() for own, other in zip(right, given, strict=True)):
        return "keys left out, or another mask, read from elsewhere, that hides them"
    if all((own | ~other).all() for own, other in zip(right, given, strict=True)):
        return "another mask, read from elsewhere: keys that the mask hides"
    return "another mask, read from elsewhere"


def _left(row: Sheet, rules: dict[str, Rule], ways: list[Any]) -> np.ndarray:
    """Return mean z^2 of a row, seeing the keys of each way. Shapes: [N]."""
    hidden = np.stack([_hidden(row, 0, rules[way[0]], *way[1:]) for way in ways])
    p = np.exp2(row.raw[0] - row.raw[0].max())
    sink = float(np.exp2(row.sink[0, 0] - row.raw[0].max()))
    seen = (~hidden) * p
    with np.errstate(all="ignore"):
        o = seen @ row.v / np.maximum(seen.sum(1, keepdims=True) + sink, _TINY)
        z2 = (((o - row.out[0]) / row.sigma[0]) ** 2).mean(1)
    return np.where(np.isfinite(z2), z2, np.inf)


def _all_hidden(sheet: Sheet, rule: Rule, joined: str, first: bool) -> np.ndarray:
    return np.stack([_hidden(sheet, i, rule, joined, first) for i in range(len(sheet.tokens))])


def _outputs(sheet: Sheet, rule: Rule, joined: str, first: bool) -> Array:
    hidden = _all_hidden(sheet, rule, joined, first)
    found = sheet.attend(np.where(hidden, -np.inf, sheet.raw))
    return np.where(hidden.all(1, keepdims=True), 0.0, found)  # a row without keys is 0


ALL = (of_masks,)
