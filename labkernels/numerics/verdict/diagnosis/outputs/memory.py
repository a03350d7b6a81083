"""Outputs that lie otherwise in memory: rows of another stride, tiles transposed, a swizzle."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.verdict.diagnosis import places
from labkernels.numerics.verdict.diagnosis.one_row import Match

_LEFT = 1.5  # rms of z that may be left, as in whole_kernel
_SMALLER_BY = 3.0
_SHOWN = 2048  # elements that select the maps which are held against all wrong rows
_PADS = 64  # most channels by which a stride is too large
_SQUARES = (4, 8, 16, 32, 64)
_CHUNKS = (2, 4, 8, 16)
_NAME = "out in another layout"
_SWIZZLED = "channels mixed up, in another order in each row"
# Which element of the right output lies where row r and channel c are read, of n rows of D
# channels: (r, c, D, n) -> (r, c)
Map = Callable[..., tuple[Any, Any]]


def of_output(problem: Problem, out: Array, truth: Array, sigma: Array, bad: Array) -> list[Match]:
    """Return a name if wrong rows hold right elements by another map. Shapes: bad [total_q, Hq]."""
    rows = np.argwhere(bad)
    if not len(rows):
        return []
    width = out.shape[-1]
    z = (out[bad] - truth[bad]) / np.where(sigma[bad] > 0, sigma[bad], np.inf)
    was = float(np.sqrt((z**2).mean()))
    shown = np.unique(np.linspace(0, len(rows) * width - 1, _SHOWN).astype(int))
    for where, line, number, first, count in _orders(problem, out.shape[1]):
        flat, spread = (x.reshape(-1, width)[line] for x in (truth, sigma))
        own, start, of_all = (x[tuple(rows.T)] for x in (number, first, count))
        given = out[bad]

        def missed(at: Array, of: Map) -> float:
            """Return the rms of z of some elements of the wrong rows, by a map."""
            row, channel = np.divmod(at, width)
            to, c = of(own[row], channel, width, of_all[row])  # noqa: B023
            to = np.broadcast_to(to, at.shape) + start[row]  # noqa: B023
            there = (to < len(flat)) & (c < width) & (c >= 0)  # noqa: B023
            to, c = np.where(there, to, 0), np.where(there, c, 0)
            right = np.where(there, flat[to, c], 0.0)  # noqa: B023
            error = given[row, channel] - right  # noqa: B023
            z = np.where(error == 0, 0.0, error / np.maximum(spread[to, c], 1e-300))  # noqa: B023
            return float(np.sqrt((z**2).mean()))

        for words, of in _maps(width):
            if missed(shown, of) > 2 * _LEFT:
                continue
            left = missed(np.arange(len(rows) * width), of)
            if left <= _LEFT and left * _SMALLER_BY <= was:
                place = places.words(problem, bad)
                told = "; ".join(filter(None, (f"{words}; rows are {where}", place)))
                swizzled = words.startswith("chunk")
                name = f"{_NAME}, or {_SWIZZLED}" if swizzled else _NAME
                return [Match(name, told, left, was)]
    return []


def _orders(problem: Problem, heads: int) -> Iterator[tuple[str, Array, Array, Array, Array]]:
    """Yield words, the rows in the order of memory [R], each row's number, first row and count.

    A number is that among the rows of its request, of a KV head of it, or among all rows; so is the
    count of rows. Shapes: [total_q, Hq] each.
    """
    ends, group = problem.q_ends, problem.group
    every = np.arange(int(ends[-1]) * heads).reshape(-1, heads)
    number, first, count = (np.empty_like(every) for _ in range(3))
    for begin, end in itertools.pairwise(ends.tolist()):
        number[begin:end] = np.arange((end - begin) * heads).reshape(-1, heads)
        first[begin:end] = begin * heads
        count[begin:end] = (end - begin) * heads
    yield "the heads of a token side by side", every.ravel(), number, first, count
    whole = 0 * every + every.size
    yield "those of all requests, tokens first", every.ravel(), every, 0 * every, whole
    line, turned = [], np.empty_like(every)
    for begin, end in itertools.pairwise(ends.tolist()):
        n = end - begin
        line.append(every[begin:end].T.ravel())
        turned[begin:end] = np.arange(n * heads).reshape(heads, n).T
    yield "the tokens of a head side by side", np.concatenate(line), turned, first, count
    order, number, first, count = _of_blocks(problem, every, 1, tokens_first=False)
    yield "the tokens of one head", order, number, first, count
    if group > 1:
        for words, tokens_first in (
            ("the packed heads of a group, token by token", True),
            ("the packed heads of a group, head by head", False),
        ):
            order, number, first, count = _of_blocks(
                problem, every, group, tokens_first=tokens_first
            )
            yield words, order, number, first, count


def _of_blocks(
    problem: Problem, every: Array, group: int, *, tokens_first: bool
) -> tuple[Array, Array, Array, Array]:
    """Return an order in which the rows of `group` heads of a request lie side by side."""
    number, first, count = (np.empty_like(every) for _ in range(3))
    line: list[np.ndarray] = []
    at = 0
    for begin, end in itertools.pairwise(problem.q_ends.tolist()):
        for head in range(0, every.shape[1], group):
            some = slice(begin, end), slice(head, head + group)
            n = (end - begin) * group
            own = np.arange(n)
            shape = (end - begin, group)
            number[some] = own.reshape(shape) if tokens_first else own.reshape(shape[::-1]).T
            first[some], count[some] = at, n
            line.append((every[some] if tokens_first else every[some].T).ravel())
            at += n
    return np.concatenate(line), number, first, count


def _maps(width: int) -> Iterator[tuple[str, Map]]:
    for pad in range(1, min(_PADS, width) + 1):
        yield (
            f"stored with a stride of {width + pad}, read with {width}",
            lambda r, c, d, n, p=pad: np.divmod(r * d + c, d + p),
        )
        yield (
            f"stored with a stride of {width}, read with {width + pad}",
            lambda r, c, d, n, p=pad: np.divmod(r * (d + p) + c, d),
        )
        yield (
            f"stored with a stride of {width}, read with {width - pad}",
            lambda r, c, d, n, p=pad: np.divmod(r * (d - p) + c, d),
        )
    for size in _SQUARES:
        if size <= width:
            words = f"squares of {size} rows and channels are transposed"
            yield words, lambda r, c, d, n, s=size: _square(r, c, d, s)
            yield f"whole {words}", lambda r, c, d, n, s=size: _square(r, c, d, s, n)
            words = f"tiles of {size} rows are stored as [channels, rows]"
            yield words, lambda r, c, d, n, s=size: _turned(r, c, d, s)
    for chunk in _CHUNKS:
        for shift in range(4):
            for mask in (1, 3, 7):
                for up in range(4):
                    if chunk * (mask << up) < width:
                        words = (
                            f"chunk x of {chunk} channels of row r is "
                            f"x xor ((r / {1 << shift}) & {mask}) * {1 << up}"
                        )
                        yield words, _swizzle(chunk, shift, mask, up)


def _square(
    r: Array, c: Array, width: int, size: int, count: Array | None = None
) -> tuple[Array, Array]:
    whole = c < width // size * size
    if count is not None:
        whole &= r < count // size * size
    row, channel = r // size * size + c % size, c // size * size + r % size
    return np.where(whole, row, r), np.where(whole, channel, c)


def _turned(r: Array, c: Array, width: int, size: int) -> tuple[Array, Array]:
    place = r % size * width + c
    return r // size * size + place % size, place // size


def _swizzle(chunk: int, shift: int, mask: int, up: int) -> Map:
    def of(r: Array, c: Array, width: int, count: Array) -> tuple[Array, Array]:
        to = (c // chunk ^ ((r >> shift & mask) << up)) * chunk + c % chunk
        return r, np.where(to < width, to, c)

    return of
