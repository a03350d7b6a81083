"""Keys of another head, request, tensor or place, for a part of the keys: every source and part.

What a part of the keys changes is a sum over them, so that one product of matrices gives all parts.
Functions take sheets and a misfit, as those of `fitted` do.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.products import parts, screens
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet

_OTHERS = 4  # most other heads or requests
_WHOLE = (16, 32, 64)  # keys of tiles whose tiles and places are tried together
_RUNS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)  # keys of a run anywhere
_STEPS = (*(sign * d for d in (1, 2, 4, 8, 16, 32, 64, 128) for sign in (-1, 1)),)
_MOST = 2**13  # parts
_NUMBERS = 2**24  # parts times keys: with more, it would take seconds
_JUDGED = 6
_TENSORS = ("K and V", "V", "K")

Source = Callable[[Sheet, str], Any]  # K or V of a sheet, as it is read [L, D]


def _of_other(head: int, request: int) -> Source:
    def of(sheet: Sheet, which: str) -> Array:
        own = sheet.keys(which)
        at = (sheet.kv_head + head) % sheet.problem.kv_heads
        other = sheet.keys(which, at, (sheet.request + request) % sheet.problem.batch)
        other = other[: len(own)]
        return np.concatenate([other, own[len(other) :]])

    return of


def _of_tensor(sheet: Sheet, which: str) -> Any:
    other = sheet.keys("v" if which == "k" else "k")
    return other if other.shape == sheet.keys(which).shape else None


def _moved(step: int) -> Source:
    def of(sheet: Sheet, which: str) -> Array:
        own = sheet.keys(which)
        at = np.arange(len(own)) + step
        return own[np.where((at >= 0) & (at < len(own)), at, np.arange(len(own)))]

    return of


def _sources(sheet: Sheet) -> Iterator[tuple[str, str, Source]]:
    """Yield a name with {} for the tensor, a place, and what is read."""
    problem = sheet.problem
    heads, batch = min(problem.kv_heads, _OTHERS), min(problem.batch, _OTHERS)
    for step in range(1, heads):
        where = f"KV head h reads KV head (h + {step}) % {problem.kv_heads}"
        yield "{} of another head", where, _of_other(step, 0)
    if problem.kv_heads > heads:
        yield "{} of another head", "KV head h reads KV head h - 1", _of_other(-1, 0)
    for step in range(1, batch):
        where = f"request b reads request (b + {step}) % {problem.batch}"
        yield "{} of another request", where, _of_other(0, step)
    if problem.batch > batch:
        yield "{} of another request", "request b reads request b - 1", _of_other(0, -1)
    if problem.batch > 1 and problem.kv_heads > 1:
        where = "request b and KV head h read request b + 1 and KV head h + 1"
        yield "{} of another request", where, _of_other(1, 1)
    for step in _STEPS:
        if abs(step) < sheet.kv_len:
            yield "{} read at an offset", f"key j reads key j {step:+d}", _moved(step)
    yield "{} read as 0", "", lambda s, w: np.zeros_like(s.keys(w))
    if isinstance(sheet.channels, slice):
        yield "{} read from the other tensor", "", _of_tensor


@functools.lru_cache(4)
def _parts(n: int) -> tuple[tuple[str, ...], np.ndarray]:
    """Return words for parts of n keys, and which keys they have. Shapes: [S, n]."""
    found: dict[bytes, tuple[str, np.ndarray]] = {}

    def keep(words: str, keys: Array) -> None:
        if 0 < keys.sum() < n:
            found.setdefault(keys.tobytes(), (words, keys))

    for tiles in parts.every(n):
        for words, keys in parts.scopes(tiles, whole=tiles.size in _WHOLE):
            keep(words, keys)
    key = np.arange(n)
    for size in _RUNS:
        for first in range(0, n - size + 1, max(1, n // 512)):
            keep(f"keys {first} to {first + size - 1}", (key >= first) & (key < first + size))
    some = list(found.values())[: min(_MOST, _NUMBERS // n)]
    return tuple(words for words, _ in some), np.stack([keys for _, keys in some])


def of_parts(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Some keys are those of another head, request or tensor, or 0."""
    rows = screens.rows_of(sheets)
    n = rows[0].keys
    if n < 4:
        return
    words, flags = _parts(n)
    ways = [(one, what) for one in _sources(sheets[0]) for what in _TENSORS]
    flat = flags.astype(float)
    near = []
    for i, ((_, _, source), what) in enumerate(ways):
        left = _left(rows[0], source, what, flat)
        if left is None:
            continue
        some = np.argsort(left, kind="stable")[:_JUDGED]
        for row in rows[1:]:
            more = _left(row, source, what, flat[some])
            left[some] += more if more is not None else np.inf
        near += [(float(left[j]), i, int(j)) for j in some]
    for left, i, j in sorted(near)[:_JUDGED]:
        (name, where, source), what = ways[i]
        if np.isfinite(left):
            yield Mistake(
                name.format(what),
                "; ".join(filter(None, (where, words[j]))),
                lambda s, f=source, w=what, said=words[j]: _outputs(s, f, w, said),
                cost=1.5,
            )


def _left(row: screens.Rows, source: Source, what: str, flags: Array) -> Any:
    """Return mean z^2 of a row whose keys are another's in each part [S, n]. Shapes: [S]."""
    sheet, n = row.sheet, row.keys
    k, v = (source(sheet, which) for which in "kv")
    if k is None or v is None:
        return None
    products = (sheet.q @ k.T) if "K" in what else sheet.q @ sheet.k.T
    scores = np.where(sheet.hidden, -np.inf, sheet.shaped(products))[0]
    own = np.where(sheet.hidden[0], -np.inf, sheet.raw[0])
    top = max(float(scores.max()), float(own.max()), float(sheet.sink[0, 0]))
    p, q = np.exp2(own - top), np.exp2(scores - top)
    given = v @ row.ways if "V" in what else row.values[:n]
    change = np.concatenate([q[:, None] * given - p[:, None] * row.values[:n]], 1)
    above = p @ row.values[:n] + flags @ change
    below = p.sum() + np.exp2(sheet.sink[0, 0] - top) + flags @ (q - p)
    return row.missed(above, below)


def _outputs(sheet: Sheet, source: Source, what: str, said: str) -> Array | None:
    words, flags = _parts(sheet.kv_len)
    if said not in words:
        return None
    some = flags[words.index(said)][:, None]
    k, v = (source(sheet, which) for which in "kv")
    if k is None or v is None:
        return None
    scores = sheet.scores
    if "K" in what:
        k = np.where(some, k, sheet.k)
        scores = sheet.masked(sheet.shaped(sheet.q @ k.T))
    return sheet.attend(scores, np.where(some, v, sheet.v) if "V" in what else sheet.v)


ALL = (of_parts,)
