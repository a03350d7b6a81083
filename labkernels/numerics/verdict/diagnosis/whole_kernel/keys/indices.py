"""Keys by another index: pages of another stride, tiles of any size, rings, offsets by head.

Functions take sheets and a misfit, as those of `fitted` do.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet, part

_PAGES = (16, 32, 64, 128, 8, 4, 24, 48, 256)
_STRIDES = (1, -1, 2, -2, 4, -4, 8, -8)
_TILES = (*range(4, 65, 4), 80, 96, 112, 128, 160, 192, 256)
_STEPS = (1, -1, 2, -2, 4, -4, 8, -8, 16, -16)
_FACTORS = (3, 5, 7, 9, 11, 13, 17)
_TENSORS = ("K and V", "K", "V")
_JUDGED = 6
_BEYOND = ("the last key", "the first keys", "0")
_NUMBERS = 2**27  # numbers of K and V that are moved: with more, it would take seconds

Index = Callable[..., Any]  # of a sheet: which key each key is; it may lie beyond the end


def _key(sheet: Sheet) -> np.ndarray:
    return np.arange(sheet.kv_len)


def _within(sheet: Sheet, size: int, moved: Callable[..., Any]) -> np.ndarray:
    """Return keys whose whole tiles are moved as given."""
    key = _key(sheet)
    return np.where(key < len(key) // size * size, moved(key), key)


def _tiles(size: int, longest: int) -> Iterator[tuple[str, Index]]:
    """Yield orders of tiles, and of keys within them."""

    def of(moved: Callable[..., Any], whole: int = size) -> Index:
        return lambda sheet: _within(sheet, whole, moved)

    n = size
    yield f"tiles of {n} in reverse", of(lambda j: j // n * n + n - 1 - j % n)
    yield f"tiles of {n} swapped in pairs", of(lambda j: (j // n ^ 1) * n + j % n, 2 * n)
    yield (
        f"tiles of {n} in reverse order",
        lambda s: _within(s, n, lambda j: (s.kv_len // n - 1 - j // n) * n + j % n),
    )
    for step in (1, -1, n // 2):
        words = f"key x of each {n} is key (x {step:+d}) % {n}"
        yield words, of(lambda j, d=step: j // n * n + (j + d) % n)
    yield (
        f"the last key of each {n} is its first",
        of(lambda j: np.where(j % n == n - 1, j - n + 1, j)),
    )
    if 2 * n < longest:
        for factor in _FACTORS:
            yield (
                f"tile t of {n} is tile {factor} t % their number",
                lambda s, f=factor: _within(
                    s, n, lambda j: j // n * f % (s.kv_len // n) * n + j % n
                ),
            )
        yield (
            f"even tiles of {n} are the ones behind",
            of(lambda j: (j // n | 1) * n + j % n, 2 * n),
        )
        yield f"odd tiles of {n} are the ones before", of(lambda j: j // n // 2 * 2 * n + j % n)


def _rules(sheet: Sheet) -> Iterator[tuple[str, Index]]:
    longest = max(int(n) for n in sheet.problem.kv_lens)
    for size in _PAGES:
        if size >= longest:
            continue
        for more in _STRIDES:
            if abs(more) < size:
                words = f"page p of {size} begins at {size + more} p"
                yield words, lambda s, n=size, d=more: _key(s) + _key(s) // n * d
        for step in (2, 4):
            words = f"key x of each page of {size} is key {step} x"
            yield words, lambda s, n=size, f=step: _key(s) // n * n + _key(s) % n * f
    for size in _TILES:
        if size < longest:
            yield from _tiles(size, longest)
            yield (
                f"a ring of {size} keeps the newest",
                lambda s, n=size: _key(s) + (s.kv_len - 1 - _key(s)) // n * n,
            )
            yield f"a ring of {size} keeps the oldest", lambda s, n=size: _key(s) % n
    for what, number in _NUMBERS_OF.items():
        for step in _STEPS:
            words = f"key j is key j {step:+d} times the number of {what}"
            yield words, lambda s, d=step, of=number: _key(s) + d * of(s)


_NUMBERS_OF: dict[str, Callable[..., int]] = {
    "the KV head": lambda sheet: sheet.kv_head,
    "the KV head, counted from 1": lambda sheet: sheet.kv_head + 1,
    "the KV head, counted from the last": lambda s: s.problem.kv_heads - 1 - s.kv_head,
    "the request": lambda sheet: sheet.request,
    "the request, counted from 1": lambda sheet: sheet.request + 1,
}


def _read(sheet: Sheet, what: str, index: Array, beyond: str) -> Array:
    n = sheet.kv_len
    inside = (index >= 0) & (index < n)
    at = index % n if beyond == "the first keys" else np.clip(index, 0, n - 1)
    zero = (~inside & (beyond == "0"))[:, None]
    scores, v = sheet.scores, sheet.v
    if "K" in what:
        k = np.where(zero, 0.0, sheet.k[at])
        scores = sheet.masked(sheet.shaped(sheet.q @ k.T))
    if "V" in what:
        v = np.where(zero, 0.0, v[at])
    return sheet.attend(scores, v)


def of_rules(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Keys have another index, by a rule of tiles, pages, rings, heads or requests."""
    most = _NUMBERS // max(sheets[0].k.size * len(sheets), 1)
    ways = []
    for words, index in _rules(sheets[0]):
        for beyond in _BEYOND:
            given = index(sheets[0])
            if beyond != _BEYOND[0] and given.min() >= 0 and given.max() < len(given):
                continue  # no key lies beyond the end
            ways += [(words, index, beyond, what) for what in _TENSORS]
    ways = ways[:most]

    total = np.zeros(len(ways))  # a rule of heads or requests shows in several sheets alone
    for sheet in sheets:
        row = int((((sheet.out - sheet.truth) / sheet.sigma) ** 2).mean(1).argmax())
        one = part(sheet, slice(row, row + 1))
        for i, (_, index, beyond, what) in enumerate(ways):
            z = (_read(one, what, index(one), beyond) - one.out) / one.sigma
            total[i] += float((z**2).mean()) if np.isfinite(z).all() else np.inf
    for i in np.argsort(total, kind="stable")[:_JUDGED].tolist():
        words, index, beyond, what = ways[i]
        name = "keys" if what == "K and V" else what
        yield Mistake(
            f"{name} read from other keys",
            f"{words}; beyond the end lies {beyond}",
            lambda sheet, f=index, end=beyond, w=what: _read(sheet, w, f(sheet), end),
            cost=1.0,
        )


ALL = (of_rules,)
