"""Which key is read for which: a map of tiles or of places in them, for a part of the keys.

Functions take sheets and a misfit, as those of `fitted` do.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.products import parts, screens
from labkernels.numerics.verdict.diagnosis.whole_kernel.products.parts import Tiles
from labkernels.numerics.verdict.diagnosis.whole_kernel.products.screens import Rows
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Cut, Sheet

_NUMBERS = 2**25  # keys of all maps: with more, it would take seconds
_CHUNK = 2**20
_JUDGED = 8
_SIZES = (16, 32, 64, 8, 128, 4, 24, 48, 256)
_BITS = (8, 16, 32, 64)  # keys of tiles whose places' bits are exchanged
_TENSORS = ("K and V", "V", "K")
_NONE = -(2**30)  # of a key that is read as 0

Map = Callable[[Tiles, int], Any]  # of tiles of n keys: the key that is read for each [n]


def _of_tiles() -> Iterator[tuple[str, Map]]:
    """Yield maps of tiles t, whose keys keep their places."""

    def of(to: Callable[..., Any]) -> Map:
        return lambda t, n: to(t.of, t.count) * t.size + t.at

    for step in (1, 2, 3, 4):
        yield f"tile t - {step}", of(lambda t, n, d=step: t - d)
        yield f"tile t + {step}", of(lambda t, n, d=step: t + d)
        yield f"tile t xor {step}", of(lambda t, n, d=step: t ^ d)
    yield "the first tile", of(lambda t, n: 0 * t)
    yield "the last tile", of(lambda t, n: 0 * t + n - 1)
    yield "the last tile but one", of(lambda t, n: 0 * t + n - 2)
    yield "tile t / 2", of(lambda t, n: t // 2)
    yield "tile 2 t", of(lambda t, n: 2 * t)
    yield "tile t / 2 if t is even, else tile 0", of(lambda t, n: t // 2 * (t % 2 == 0))
    yield "tile t / 2 if t is even, else what follows", of(lambda t, n: np.where(t % 2, n, t // 2))
    yield "the even tile of its pair", of(lambda t, n: t & ~1)
    yield "the odd tile of its pair", of(lambda t, n: t | 1)
    yield "tile n - 1 - t", of(lambda t, n: n - 1 - t)
    yield "tile t xor t / 2", of(lambda t, n: t ^ t // 2)
    for period in (2, 3, 4, 5, 6, 7, 8, 16):
        yield f"tile t % {period}", of(lambda t, n, p=period: t % p)
        yield (
            f"tile t in reverse of each {period}",
            of(lambda t, n, p=period: t // p * p + p - 1 - t % p),
        )
    for factor in (3, 5, 7):
        yield f"tile {factor} t modulo their number", of(lambda t, n, f=factor: f * t % n)


def _of_places() -> Iterator[tuple[str, Map]]:
    """Yield maps of places x in a tile of n."""

    def of(to: Callable[..., Any]) -> Map:
        return lambda t, n: np.arange(len(t.of)) - t.at + to(t.at, t.size)

    for step in (1, 2, 4, 8, 16):
        yield f"place x - {step}", of(lambda x, n, d=step: x - d)
        yield f"place x + {step}", of(lambda x, n, d=step: x + d)
        yield f"place x - {step} modulo n", of(lambda x, n, d=step: (x - d) % n)
        yield f"place x + {step} modulo n", of(lambda x, n, d=step: (x + d) % n)
        yield f"place x xor {step}", of(lambda x, n, d=step: x ^ d)
        yield f"place x without bit {step}", of(lambda x, n, d=step: x & ~d)
        yield f"place x with bit {step}", of(lambda x, n, d=step: x | d)
    yield "the first place", of(lambda x, n: 0 * x)
    yield "the last place", of(lambda x, n: 0 * x + n - 1)
    yield "place n - 1 - x", of(lambda x, n: n - 1 - x)
    for factor in (2, 3, 5):
        yield f"place {factor} x modulo n", of(lambda x, n, f=factor: f * x % n)
        yield f"place {factor} x", of(lambda x, n, f=factor: f * x)
        yield f"place x / {factor}", of(lambda x, n, f=factor: x // f)
    yield "place x xor x / 2", of(lambda x, n: x ^ x // 2)
    for rows in (2, 4, 8):
        yield (
            f"x transposed as {rows} rows",
            of(lambda x, n, r=rows: x % r * max(n // r, 1) + x // r),
        )
        yield (
            f"x transposed as {rows} columns",
            of(lambda x, n, r=rows: x % max(n // r, 1) * r + x // max(n // r, 1)),
        )


def _of_bits(size: int) -> Iterator[tuple[str, Map]]:
    """Yield maps of places whose bits are exchanged, as the orders of fragments differ."""
    count = size.bit_length() - 1
    for order in itertools.permutations(range(count)):
        if order == tuple(range(count)):
            continue

        def moved(t: Tiles, n: int, bits: tuple[int, ...] = order) -> Array:
            x = sum((t.at >> bit & 1) << i for i, bit in enumerate(bits))
            return np.arange(len(t.of)) - t.at + x

        yield f"place x with its bits in the order {', '.join(map(str, order))}", moved


def _edges(index: Array, n: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield what is read where an index lies beyond the keys. Shapes: [n]."""
    inside = (index >= 0) & (index < n)
    if inside.all():
        yield "", index
        return
    yield "beyond the ends its own", np.where(inside, index, np.arange(n))
    yield "beyond the ends from the other end", index % n
    yield "beyond the ends the last one there", np.clip(index, 0, n - 1)
    yield "beyond the ends 0", np.where(inside, index, _NONE)


def _rules(n: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield words and which key is read for each of n keys; _NONE for 0. Shapes: [n]."""
    own = np.arange(n)
    for size in _SIZES:
        if 2 * size > n:
            continue
        t = parts.tiles(Cut(size), n)
        some = list(parts.scopes(t, whole=False))
        short = [one for one in some if "eighth" not in one[0] and "runs" not in one[0]]
        for words, to in _of_tiles():
            for edge, index in _edges(to(t, n), n):
                yield from _on(words, edge, index, short, own)
        tiles_alone = [(which, rule(t)) for which, rule in parts.WHICH.items()]
        for words, to in _of_places():
            for edge, index in _edges(to(t, n), n):
                said = [(parts.said(which, t.words), keys) for which, keys in tiles_alone]
                yield from _on(words, edge, index, said, own)
                whole = (own < n // size * size) & (index < n // size * size)
                if not whole.all():
                    yield from _on(words, edge, index, [(f"whole {t.words}", whole)], own)
        for words, keys in some:
            yield f"0; {words}", np.where(keys, _NONE, own)
    for size in _BITS:
        if size > n:
            continue
        t = parts.tiles(Cut(size), n)
        whole = own < n // size * size
        for words, to in _of_bits(size):
            yield f"{words}; whole {t.words}", np.where(whole, to(t, n), own)


def _on(
    words: str, edge: str, index: Array, some: Iterable[tuple[str, Array]], own: Array
) -> Iterator[tuple[str, np.ndarray]]:
    for said, keys in some:
        yield f"{words}; {parts.said(said, edge)}", np.where(keys, index, own)


def _sums_of(rows: Rows, index: Array, what: str) -> tuple[Array, Array]:
    return next((sums, below) for name, sums, below in _sums(rows, index) if name == what)


def _sums(rows: Rows, index: Array) -> Iterator[tuple[str, Array, Array]]:
    """Yield sums [N, W] and denominators [N] if keys are read by indices [N, n], by tensor."""
    n = rows.keys
    at = np.where(index == _NONE, n, index)
    t = rows.exponentials[at] * rows.own
    flat = (np.arange(len(at))[:, None] * (n + 1) + at).ravel()

    def gathered(weights: Array) -> Array:
        p = np.bincount(flat, np.broadcast_to(weights, at.shape).ravel(), len(at) * (n + 1))
        return p.reshape(len(at), n + 1) @ rows.values

    below = t.sum(1) + rows.sink
    yield "K and V", gathered(t), below
    yield "V", gathered(rows.weights), np.full(len(at), rows.l)
    yield "K", t @ rows.values[:n], below


def of_maps(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Keys, or K or V alone, are read by a map of tiles or places, for a part of the keys."""
    first, *others = screens.rows_of(sheets)
    n = first.keys
    rules, said = itertools.islice(_rules(n), _NUMBERS // n), list[str]()
    near = {what: screens.Nearest(_JUDGED, others) for what in _TENSORS}
    while some := list(itertools.islice(rules, max(1, _CHUNK // n))):
        index = np.stack([index for _, index in some])
        for what, sums, below in _sums(first, index):
            near[what].add(first.missed(sums, below), len(said), index)
        said += [words for words, _ in some]
    chosen = {
        what: one.best(lambda row, index, w=what: row.missed(*_sums_of(row, index, w)))
        for what, one in near.items()
    }
    wanted = frozenset(said[i] for some in chosen.values() for i in some)
    for what, words in ((w, said[i]) for w, some in chosen.items() for i in some):
        yield Mistake(
            f"{'keys' if what == 'K and V' else what} read from other keys",
            words,
            lambda sheet, of=words, w=what: _read(sheet, wanted, of, w),
            cost=1.5,
        )


@functools.lru_cache(16)
def _indices(n: int, wanted: frozenset[str]) -> dict[str, np.ndarray]:
    """Return the maps of n keys whose words are wanted."""
    return {words: index for words, index in _rules(n) if words in wanted}


def _read(sheet: Sheet, wanted: frozenset[str], words: str, what: str) -> Array | None:
    index = _indices(sheet.kv_len, wanted).get(words)
    if index is None:
        return None
    zero = index == _NONE
    at = np.where(zero, 0, index)
    scores, v = sheet.scores, sheet.v
    if "K" in what:
        products = np.where(zero, 0.0, (sheet.q @ sheet.k.T)[:, at])
        scores = sheet.masked(sheet.shaped(products))
    if "V" in what:
        v = np.where(zero[:, None], 0.0, v[at])
    return sheet.attend(scores, v)


ALL = (of_maps,)
