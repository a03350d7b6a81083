"""Chunks of the channels of K or V that come from another key, or in an order that a key sets.

Functions take sheets and a misfit, as those of `fitted` do.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.products import screens
from labkernels.numerics.verdict.diagnosis.whole_kernel.products.screens import Rows
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet, keys_of

_JUDGED = 6
_STEPS = (1, 2, 3, 4, 8, 16, 32, 64)
_SIZES = (16, 32, 64, 8, 4)
_NUMBERS = 2**27  # numbers of K that are turned: with more, it would take seconds


def some_channels(width: int) -> Iterator[tuple[str, slice]]:
    """Yield runs of channels: the first, the last and each aligned chunk of all sizes."""
    known = set()
    for size in (width // 2, width // 4, 64, 32, 16, 8, 4):
        if not 1 < size < width:
            continue
        for first in (*range(0, width - size + 1, size), width - size):
            if (first, size) not in known:
                known.add((first, size))
                yield f"channels {first} to {first + size - 1}", slice(first, first + size)


def _indices(n: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield other keys, as far as there are so many: of key j, n for none. Shapes: [n]."""
    key = np.arange(n)
    for step in (sign * d for d in _STEPS for sign in (1, -1)):
        at = key + step
        inside = (at >= 0) & (at < n)
        yield f"key j {step:+d}, around", at % n
        yield f"key j {step:+d}, as far as it is there", np.where(inside, at, key)
        yield f"key j {step:+d}, else 0", np.where(inside, at, n)
        yield f"key j {step:+d}, at most the last", np.clip(at, 0, n - 1)
    for size in _SIZES:
        if size < n:
            yield f"the first key of each {size}", key // size * size
            yield f"key j xor {size // 2}, if it is there", _inside(key ^ size // 2, n)
            other = key ^ size // 2
            yield f"key j xor {size // 2}, else 0", np.where(other < n, other, n)
            yield f"key j - {size} in odd tiles of {size}", key - key // size % 2 * size
            yield f"key j % {size}", key % size
    yield "the first key", 0 * key
    yield "the last key", 0 * key + n - 1


def _inside(at: Array, n: int) -> np.ndarray:
    return np.where(at < n, at, np.arange(n))


def of_chunks(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Some channels of K come from other keys."""
    first, *others = screens.rows_of(sheets)
    n, width = first.keys, sheets[0].k.shape[1]
    runs = list(some_channels(width))
    words, index = zip(*_indices(n), strict=True)
    at = np.stack(index)
    near = screens.Nearest(_JUDGED, others)
    for i, (_, some) in enumerate(runs):
        points = np.stack(np.broadcast_arrays(i, np.arange(len(at))), 1)
        near.add(_left(first, some, at), i * len(at), points)

    def missed(row: Rows, points: Array) -> Array:
        return np.array([_left(row, runs[i][1], at[[j]])[0] for i, j in points])

    for number in near.best(missed):
        i, j = divmod(number, len(at))
        yield Mistake(
            "channels of K read from other keys",
            f"{runs[i][0]} of key j are those of {words[j]}",
            lambda sheet, some=runs[i][1], w=words[j]: _read(sheet, some, w),
            cost=2.0,
        )


def _left(row: Rows, some: slice, at: Array) -> np.ndarray:
    """Return what is left if channels come from keys `at` [N, n]. Shapes: [N]."""
    sheet = row.sheet
    mine = sheet.q[:, some] @ sheet.k[:, some].T
    scores = (sheet.q @ sheet.k.T - mine)[0] + np.append(mine[0], 0.0)[at]
    return row.of_products(scores)


def _read(sheet: Sheet, some: slice, words: str) -> Array:
    at = next(index for said, index in _indices(sheet.kv_len) if said == words)
    k = sheet.k.copy()
    k[:, some] = np.concatenate([sheet.k, np.zeros_like(sheet.k[:1])])[at, some]
    return sheet.attend(sheet.masked(sheet.shaped(sheet.q @ k.T)))


def _row_numbers() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield numbers of keys that a swizzle may take bits of."""
    for shift in range(7):
        yield f"j / {1 << shift}" if shift else "j", lambda j, s=shift: j >> s
    for shift in range(3):
        yield f"(j xor j / 2) / {1 << shift}", lambda j, s=shift: (j ^ j >> 1) >> s
    for shift in range(1, 5):
        yield f"j xor j / {1 << shift}", lambda j, s=shift: j ^ j >> s
        yield f"j + j / {1 << shift}", lambda j, s=shift: j + (j >> s)
    for factor in (3, 5, 7):
        yield f"{factor} j", lambda j, f=factor: f * j
    yield "-j", lambda j: -j
    yield "-1 - j", lambda j: -1 - j
    for size in (16, 32, 64):
        yield f"(j % {size}) / 3", lambda j, s=size: j % s // 3


_WIDTHS = (2, 4, 8)  # numbers of chunks that a swizzle exchanges
_CHUNKS = (8, 4, 16, 2, 32, 1)
_WAYS: dict[str, Callable[..., Any]] = {  # chunk x of n, by a number c
    "x xor c": lambda x, c, n: np.where((x ^ c) < n, x ^ c, x),
    "x + c, around": lambda x, c, n: (x + c) % n,
    "x - c, around": lambda x, c, n: (x - c) % n,
}


def _orders(width: int, chunk: int, way: str) -> np.ndarray:
    """Return which channel each is, for all numbers c of chunks. Shapes: [C, width]."""
    channel = np.arange(width)
    count = width // chunk
    x = _WAYS[way](channel // chunk, np.arange(count)[:, None], count)
    return np.where(channel < count * chunk, x * chunk + channel % chunk, channel)


def _pairs() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield numbers of keys by which two swizzles differ: one wrote, and another reads."""
    for shift, one, other in itertools.product((1, 2, 3), _WIDTHS, _WIDTHS):
        yield (
            f"j % {one} xor j / {1 << shift} % {other}",
            lambda j, s=shift, a=one, b=other: j % a ^ (j >> s) % b,
        )
        yield (
            f"j % {one} xor j % {one} / {1 << shift} % {other}",
            lambda j, s=shift, a=one, b=other: j % a ^ (j % a >> s) % b,
        )


def _numbers(n: int, count: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the number c < count by which each key's chunks are exchanged. Shapes: [n]."""
    key = np.arange(n)
    bits = max(1, (count - 1).bit_length())
    for words, of in _pairs():
        if of(key).max() < count:
            yield words, of(key)
    for words, of in _row_numbers():
        for used in range(1, bits + 1):
            for up in range(bits - used + 1):
                c = (of(key) & ((1 << used) - 1)) << up
                if c.max() < count:
                    yield f"(({words}) % {1 << used}) * {1 << up}", c


def of_swizzles(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Chunks of K's or V's channels are exchanged or moved around by a number of their key."""
    first, *others = screens.rows_of(sheets)
    n = first.keys
    for which in "kv" if isinstance(sheets[0].channels, slice) else "k":
        width = sheets[0].keys(which).shape[1]
        most = _NUMBERS // (n * width)
        near = screens.Nearest(_JUDGED, others)
        ways: list[tuple[int, str, str]] = []
        for chunk, way in itertools.product(_CHUNKS, _WAYS):
            if not 1 < width // chunk <= most:
                continue
            words, numbers = zip(*_numbers(n, width // chunk), strict=True)
            points = np.arange(len(ways), len(ways) + len(words))
            near.add(_swizzled_row(first, which, chunk, way, np.stack(numbers)), len(ways), points)
            ways += [(chunk, way, said) for said in words]

        def missed(row: Rows, points: Array, w: str = which, ways: list[Any] = ways) -> Array:
            each = []
            for chunk, way, said in (ways[i] for i in points):
                c = _number(n, sheets[0].keys(w).shape[1] // chunk, said)
                each.append(_swizzled_row(row, w, chunk, way, c[None])[0])
            return np.array(each)

        for i in near.best(missed):
            chunk, way, said = ways[i]
            yield Mistake(
                f"{which.upper()} read with another swizzle of its channels",
                f"chunk x of {chunk} channels of key j is {way}, c = {said}",
                lambda sheet, w=which, given=ways[i]: _swizzled(sheet, w, *given),
                cost=2.0,
            )


@functools.lru_cache(64)
def _number(n: int, count: int, words: str) -> np.ndarray:
    return next(c for said, c in _numbers(n, count) if said == words)


def _swizzled_row(row: Rows, which: str, chunk: int, way: str, numbers: Array) -> np.ndarray:
    """Return what is left by numbers of the keys [N, n]. Shapes: [N]."""
    sheet = row.sheet
    width = sheet.keys(which).shape[1]
    orders = _orders(width, chunk, way)
    key = np.arange(numbers.shape[1])
    if which == "k":  # q with the keys' channels in another order
        back = np.argsort(orders, 1)
        return row.of_products((sheet.q[0][back] @ sheet.k.T)[numbers, key])
    values = np.stack([sheet.v @ row.ways[np.argsort(order)] for order in orders])  # [C, n, W]
    sums = np.empty((len(numbers), values.shape[2]))
    for i, c in enumerate(numbers):
        sums[i] = row.weights @ values[c, key]
    return row.missed(sums, np.full(len(sums), row.l))


def _swizzled(sheet: Sheet, which: str, chunk: int, way: str, words: str) -> Array:
    whole = keys_of(sheet.problem, which, sheet.kv_head, sheet.request)
    c = _number(len(whole), whole.shape[1] // chunk, words)
    x = np.take_along_axis(whole, _orders(whole.shape[1], chunk, way)[c], 1)
    if which == "v":
        return sheet.attend(sheet.scores, x[:, sheet.channels])
    return sheet.attend(sheet.masked(sheet.shaped(sheet.q @ x.T)))


ALL = (of_chunks, of_swizzles)
