"""Channels of K, V or Q in chunks that a swizzle of shared memory exchanges, by key or by row.

Two registers of a fragment that are exchanged move a chunk to other rows, too.

Functions take sheets and a misfit, as those of `fitted` do.
"""

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit, of_rows
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import (
    Sheet,
    keys_of,
    part,
    queries_of,
)

_CHUNKS = (8, 4, 16, 2, 32, 1)
_NUMBERS = 2**26  # numbers of K and V that are moved: with more, it would take seconds

Swizzle = tuple[int, int, int, int]  # chunk, shift, mask, up
_ROWS_OF_Q: dict[str, Callable[[Sheet], np.ndarray]] = {
    "its token": lambda sheet: sheet.queries,
    "its token and head": lambda sheet: sheet.queries * sheet.problem.q.shape[1] + sheet.heads,
    "its token and head in the group": lambda sheet: sheet.packed_rows,
}


def _swizzles(width: int) -> Iterator[Swizzle]:
    for chunk, shift, mask, up in itertools.product(_CHUNKS, range(4), (7, 3, 1), range(4)):
        if chunk * (mask << up) < width:
            yield chunk, shift, mask, up


def _exchanged(x: Array, row: Array, swizzle: Swizzle) -> np.ndarray:
    """Return x [n, D] with chunks exchanged by the numbers of its rows [n]."""
    chunk, shift, mask, up = swizzle
    at = np.arange(x.shape[1])[None]
    to = (at // chunk ^ ((row[:, None] >> shift & mask) << up)) * chunk + at % chunk
    whole = x.shape[1] // chunk * chunk
    return np.take_along_axis(x, np.where((to < whole) & (at < whole), to, at), 1)


def _outputs(sheet: Sheet, what: str, by: str, swizzle: Swizzle) -> Array:
    scores, v = sheet.scores, sheet.v
    if what == "Q":
        q = _exchanged(sheet.q, _ROWS_OF_Q[by](sheet), swizzle)
        scores = sheet.masked(sheet.shaped(q @ sheet.k.T))
    key = np.arange(sheet.kv_len)
    if what == "K":
        scores = sheet.masked(sheet.shaped(sheet.q @ _exchanged(sheet.k, key, swizzle).T))
    if what == "V":
        whole = keys_of(sheet.problem, "v", sheet.kv_head, sheet.request)
        v = _exchanged(whole, key, swizzle)[:, sheet.channels]
    return sheet.attend(scores, v)


def of_swizzles(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Chunks of channels are exchanged by bits of the number of their key or row."""
    sheet = sheets[0]
    most = _NUMBERS // max(sheet.k.size + sheet.v.size, 1)
    for what, whose in (("K", ("its key",)), ("V", ("its key",)), ("Q", tuple(_ROWS_OF_Q))):
        width = (sheet.q if what == "Q" else sheet.keys(what.lower())).shape[1]
        ways = [(by, swizzle) for by in whose for swizzle in _swizzles(width)][:most]

        def each(
            sheet: Sheet, row: int, w: str = what, ways: list[tuple[str, Swizzle]] = ways
        ) -> Array:
            one = part(sheet, slice(row, row + 1))
            return np.concatenate([_outputs(one, w, *way) for way in ways])

        for i in sorted({i for _, _, i in of_rows(sheets[:1], each, rows=2)} if ways else ()):
            by, (chunk, shift, mask, up) = ways[i]
            bits = f"(({by} / {1 << shift}) & {mask}) * {1 << up}"
            yield Mistake(
                f"{what} read with another swizzle of its channels",
                f"chunk x of {chunk} channels is x xor {bits}",
                lambda sheet, w=what, way=ways[i]: _outputs(sheet, w, *way),
                cost=2.0,
            )


Bits = tuple[str, int, int]  # tensor and rows, a bit of the row's number, a bit of the channel's
_PACKED = "Q, rows of a group packed"


def _bits(width: int, rows: int, what: str) -> list[Bits]:
    return [
        (what, row, channel)
        for row, channel in itertools.product(range(6), range(7))
        if 1 << row < rows and 2 << channel <= width
    ]


def _of_fragments(x: Array, rows: Array, bits: Bits) -> np.ndarray:
    """Return rows [R, D] of x [n, D] with two bits exchanged; what lies past the end is 0."""
    _, low, high = bits
    channel = np.arange(x.shape[1])[None]
    other = (rows[:, None] >> low ^ channel >> high) & 1
    other = np.where(channel < x.shape[1] >> high + 1 << high + 1, other, 0)
    at, to = rows[:, None] ^ other << low, channel ^ other << high
    return np.where(at < len(x), x[np.minimum(at, len(x) - 1), to], 0.0)


def _queries(sheet: Sheet, packed: bool) -> list[tuple[Array, Array, Array]]:
    """Return queries of the request [n, D], which rows are of them, and their numbers there."""
    problem, ends = sheet.problem, sheet.problem.q_ends
    tokens = np.arange(int(ends[sheet.request]), int(ends[sheet.request + 1]))
    first = sheet.kv_head * problem.group
    heads = np.arange(first, first + problem.group)
    if packed:
        q = queries_of(problem, tokens.repeat(len(heads)), np.tile(heads, len(tokens)))
        return [(q, np.arange(len(sheet.tokens)), sheet.packed_rows)]
    found = []
    for head in np.unique(sheet.heads).tolist():
        mine = np.flatnonzero(sheet.heads == head)
        q = queries_of(problem, tokens, np.full(len(tokens), head))
        found.append((q, mine, sheet.queries[mine]))
    return found


def _with_bits(sheet: Sheet, bits: Bits) -> Array:
    key = np.arange(sheet.kv_len)
    if bits[0] == "V":
        whole = keys_of(sheet.problem, "v", sheet.kv_head, sheet.request)
        return sheet.attend(sheet.scores, _of_fragments(whole, key, bits)[:, sheet.channels])
    if bits[0] == "K":
        k = _of_fragments(sheet.k, key, bits)
        return sheet.attend(sheet.masked(sheet.shaped(sheet.q @ k.T)))
    q = np.empty_like(sheet.q)
    for whole, mine, rows in _queries(sheet, bits[0] == _PACKED):
        q[mine] = _of_fragments(whole, rows, bits)
    return sheet.attend(sheet.masked(sheet.shaped(q @ sheet.k.T)))


def of_fragments(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Two registers are exchanged: a bit of the row's or key's number and one of the channel's."""
    sheet = sheets[0]
    count = int(np.diff(sheet.problem.q_ends)[sheet.request])
    group = sheet.problem.group
    ways = _bits(sheet.k.shape[1], sheet.kv_len, "K") if sheet.k.size <= _NUMBERS // 128 else []
    ways += _bits(sheet.v.shape[1], sheet.kv_len, "V") if ways else []
    ways += _bits(sheet.q.shape[1], count * group, _PACKED)
    ways += _bits(sheet.q.shape[1], count, "Q") if group > 1 else []

    def each(sheet: Sheet, row: int) -> Array:
        one = part(sheet, slice(row, row + 1))
        return np.concatenate([_with_bits(one, way) for way in ways])

    for i in sorted({i for _, _, i in of_rows(sheets[:1], each, rows=2)} if ways else ()):
        what, row, channel = ways[i]
        name = f"{what[0]} read with two registers of a fragment exchanged"
        where = f"{1 << row} rows down for {1 << channel} channels to the right"
        where += ", of rows packed by groups" * (what == _PACKED)
        yield Mistake(name, where, lambda sheet, way=ways[i]: _with_bits(sheet, way), cost=2.0)


ALL = (of_swizzles, of_fragments)
