"""Channels of K, V or Q in chunks that a swizzle of shared memory exchanges, by key or by row.

Functions take sheets and a misfit, as those of `fitted` do.
"""

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit, of_rows
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet, keys_of, part

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


ALL = (of_swizzles,)
