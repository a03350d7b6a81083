"""K and V in memory: channels in packs, and rows that lie beside other numbers, read otherwise.

Functions take sheets and a misfit, as those of `fitted` do.
"""

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit, of_rows
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet, keys_of, part

_PAGES = (16, 32, 64, 128, 8, 0)
_PACKS = (8, 4, 16)
_PADS = (*range(1, 17), 24, 32, 48, 64, 128)
_NUMBERS = 2**27  # numbers of K and V that are moved: with more, it would take seconds
_TENSORS = ("K", "V", "K and V")
_AXES = {"h": "heads", "s": "slots", "d": "channels", "c": "packs", "x": "channels of a pack"}
_PLAIN = ("hsd", "shd", "hds", "dsh", "sdh", "dhs")
_PACKED = ("hcsx", "chsx", "hsxc")


@dataclass(frozen=True)
class Layout:
    """An order of heads h, slots s and channels d in a page; c packs of `pack` channels x."""

    order: str
    pack: int = 0

    def numbers(self, heads: int, slots: int, width: int) -> np.ndarray:
        """Return where each number of a page lies. Shapes: [heads, slots, width]."""
        pack = self.pack or width
        own = {"h": heads, "s": slots, "d": width, "c": width // pack, "x": pack}
        axes = "hscx" if self.pack else "hsd"
        shape = [own[axis] for axis in self.order]
        place = np.arange(heads * slots * width).reshape(shape)
        place = place.transpose([self.order.index(axis) for axis in axes])
        return place.reshape(heads, slots, width)

    @property
    def words(self) -> str:
        """The layout in words."""
        said = ", ".join(_AXES[axis] for axis in self.order)
        return f"[{said}]" + f" of {self.pack}" * bool(self.pack)


@dataclass(frozen=True)
class Way:
    """How pages are written in one layout and read in another; keys: per page, 0 for all.

    rest: whether the last, partial page is right; else zeros fill it before it is read.
    """

    keys: int
    wrote: Layout
    read: Layout
    rest: bool


def _pairs(width: int) -> Iterator[tuple[Layout, Layout]]:
    plain = [Layout(order) for order in _PLAIN]
    packs = [n for n in _PACKS if width % n == 0 and n < width]
    yield from itertools.permutations(plain, 2)
    for n in packs:
        own = [Layout(order, n) for order in _PACKED]
        for one, other in itertools.product(own, plain):
            yield one, other
            yield other, one
        yield from itertools.permutations(own, 2)
        for m in packs:
            if m != n:
                yield from ((one, Layout(one.order, m)) for one in own)


def of_packs(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Pages, or whole requests, are written in one layout and read in another."""
    sheet = sheets[0]
    heads = sheet.problem.kv_heads
    widths = sorted({sheet.k.shape[1], sheet.problem.v_pool.shape[-1]})
    tensors = _TENSORS if len(widths) == 1 else _TENSORS[:2]
    seen: set[bytes] = set()
    ways: list[Way] = []
    for keys, pair in itertools.product(_PAGES, _pairs(math.gcd(*widths))):
        size = keys or sheet.kv_len
        if size > sheet.kv_len or len(ways) * sheet.k.size > _NUMBERS:
            continue
        # orders may be the same, as with one head
        same = b"".join(_index(heads, size, width, *pair).tobytes() for width in widths)
        if same not in seen:
            seen.add(same)
            rests = (True, False) if sheet.kv_len % size else (True,)
            ways += [Way(keys, *pair, rest) for rest in rests]

    def each(sheet: Sheet, row: int) -> Array:
        one, found = part(sheet, slice(row, row + 1)), []
        for way in ways:
            given = {which: _read(one, way, which) for which in "kv"}
            found += [_attended(one, what, given) for what in tensors]
        return np.concatenate(found)

    for i in sorted({i for _, _, i in of_rows(sheets[:1], each, rows=1)} if ways else ()):
        way, what = ways[i // len(tensors)], tensors[i % len(tensors)]
        pages = f"pages of {way.keys}" if way.keys else "all"
        yield Mistake(
            f"{what} read with pages in another layout",
            f"{pages} keys lie as {way.wrote.words}, and are read as {way.read.words}",
            lambda sheet, w=way, of=what: _attended(
                sheet, of, {which: _read(sheet, w, which) for which in "kv" if which.upper() in of}
            ),
            cost=1.0,
        )


@functools.lru_cache(16)
def _index(heads: int, size: int, width: int, wrote: Layout, read: Layout) -> np.ndarray:
    """Return which number of a page [H, S, D] is read for each. Shapes: [H, S, D]."""
    lies = wrote.numbers(heads, size, width).ravel()
    back = np.empty_like(lies)
    back[lies] = np.arange(lies.size)
    return back[read.numbers(heads, size, width)]


def _read(sheet: Sheet, way: Way, which: str) -> Array:
    """Return K or V as it is read. Shapes: [L, D]."""
    size, heads = way.keys or sheet.kv_len, sheet.problem.kv_heads
    pages = _paged(sheet, which, size)  # [P, H S D]
    width = pages.shape[1] // heads // size
    index = _index(heads, size, width, way.wrote, way.read)[sheet.kv_head]
    mine = pages[:, index.ravel()].reshape(-1, width)[: sheet.kv_len]
    if way.rest:
        whole, at = sheet.kv_len // size * size, (which, "own", sheet.kv_head)
        own = sheet.once(at, lambda: keys_of(sheet.problem, which, sheet.kv_head, sheet.request))
        mine = np.concatenate([mine[:whole], own[whole:]])
    return mine[:, sheet.channels] if which == "v" else mine


def _attended(sheet: Sheet, what: str, given: dict[str, np.ndarray]) -> Array:
    scores = sheet.scores
    if "K" in what:
        if "scores" not in given:
            given["scores"] = sheet.masked(sheet.shaped(sheet.q @ given["k"].T))
        scores = given["scores"]
    return sheet.attend(scores, given["v"] if "V" in what else sheet.v)


def _paged(sheet: Sheet, which: str, size: int) -> np.ndarray:
    """Return the pages of K or V of all heads, 0 behind the last key. Shapes: [P, H S D]."""

    def found() -> Array:
        n = sheet.problem.kv_heads
        x = np.stack([keys_of(sheet.problem, which, h, sheet.request) for h in range(n)])
        x = np.pad(x, ((0, 0), (0, -x.shape[1] % size), (0, 0)))
        return x.reshape(n, -1, size, x.shape[2]).swapaxes(0, 1).reshape(-1, n * size * x.shape[2])

    return sheet.once((which, "flat pages", size), found)


def of_strides(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Rows lie beside some other numbers, such as their scales or a padding, and are read without.

    They lie so in the whole cache or in each tile of it; or they lie side by side and are read as
    if they did not.
    """
    many = sheets[0].problem.kv_heads > 1
    places = [(0, all_heads) for all_heads in ((False, True) if many else (False,))]
    places += [(size, False) for size in _PAGES if 0 < size < sheets[0].kv_len]
    ways: list[Any] = [
        (what, pad, value, tile, all_heads)
        for tile, all_heads in places
        for pad in (*_PADS, *(-n for n in _PADS if tile))
        for value in ((0.0,) if tile else (0.0, 1.0))
        for what in _TENSORS
    ]

    def each(sheet: Sheet, row: int) -> Array:
        one = part(sheet, slice(row, row + 1))
        found: dict[Any, np.ndarray] = {}
        return np.concatenate([_strided(one, way, found) for way in ways])

    for i in sorted({i for _, _, i in of_rows(sheets[:1], each, rows=2)}):
        what, pad, value, tile, all_heads = ways[i]
        lie = "[tokens, heads]" if all_heads else f"of each {tile} keys" if tile else "of a head"
        said = "hold {1:g}, and are read without" if pad > 0 else "they do not, and are read so"
        apart = "lie {0} elements apart, which " if pad > 0 else "should lie {0} elements apart; "
        yield Mistake(
            f"{what} read by another stride",
            f"rows {lie} {(apart + said).format(abs(pad), value)}",
            lambda sheet, way=ways[i]: _strided(sheet, way, {}),
            cost=1.0,
        )


def _strided(sheet: Sheet, way: tuple[Any, ...], known: dict[Any, np.ndarray]) -> Array:
    what, pad, value, tile, all_heads = way

    def found(which: str) -> Array:
        at = which, pad, value, tile, all_heads
        if at not in known:
            known.clear() if len(known) > 1 else None
            known[at] = _apart(sheet, *at)
        return known[at]

    return _attended(sheet, what, {w: found(w) for w in "kv" if w.upper() in what})


def _apart(
    sheet: Sheet, which: str, pad: int, value: float, tile: int, all_heads: bool
) -> np.ndarray:
    """Return K or V as it is read, where rows lie `pad` numbers apart, or -pad too few."""
    heads = range(sheet.problem.kv_heads) if all_heads else [sheet.kv_head]
    each = [keys_of(sheet.problem, which, head, sheet.request) for head in heads]
    x = np.stack(each, 1) if all_heads else each[0][:, None]  # [L, H, D]
    n, d, at = x.shape[0], x.shape[2], sheet.kv_head if all_heads else 0
    size = tile or n
    row = (np.arange(n) % size * x.shape[1] + at)[:, None]
    place = row * (d + max(-pad, 0)) + np.arange(d)
    row, channel = np.divmod(place, d + max(pad, 0))
    row = row + (np.arange(n) // size * size * x.shape[1])[:, None]
    inside = (channel < d) & (row < x.shape[0] * x.shape[1])
    mine = x.reshape(-1, d)[np.where(inside, row, 0), np.where(inside, channel, 0)]
    mine = np.where(inside, mine, value)
    if tile:
        mine[n // size * size :] = each[0][n // size * size :]
    return mine[:, sheet.channels] if which == "v" else mine


ALL = (of_packs, of_strides)
