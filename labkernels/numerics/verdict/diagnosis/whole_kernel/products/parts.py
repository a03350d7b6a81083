"""How keys are cut into tiles, which tiles and which places in them a mistake may concern."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Cut

SIZES = (16, 32, 64, 8, 128, 4, 24, 48, 256, 12, 20, 40, 80, 96)
COUNTS = (2, 3, 4, 5, 6, 7, 8, 16)
_FEW = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)


@dataclass(frozen=True, eq=False)
class Tiles:
    """Tiles of n keys: `words` say which. Shapes: of (the tile of each key), at (its place) [n]."""

    words: str
    of: np.ndarray
    at: np.ndarray
    size: int

    @property
    def count(self) -> int:
        """How many tiles there are."""
        return int(self.of[-1]) + 1


def tiles(cut: Cut | int, n: int) -> Tiles:
    """Return the tiles of a cut; of an integer, as many parts as it says, the last one shorter.

    >>> tiles(3, 7).of.tolist(), tiles(Cut(-3), 7).of.tolist()
    ([0, 0, 0, 1, 1, 1, 2], [0, 0, 1, 1, 2, 2, 2])
    """
    words = cut.words if isinstance(cut, Cut) else f"{cut} parts, the last one shorter"
    cut = cut if isinstance(cut, Cut) else Cut(-(-n // cut))
    starts = cut.starts(n)
    sizes = np.diff(starts, append=n)
    of = np.repeat(np.arange(len(starts)), sizes)
    return Tiles(words, of, np.arange(n) - starts[of], int(sizes.max()))


def every(n: int) -> Iterator[Tiles]:
    """Yield all cuts of n keys into at least two tiles."""
    cuts: list[Cut | int] = [Cut(size) for size in SIZES]
    cuts += [*COUNTS, *(Cut(-count) for count in COUNTS)]
    for cut in cuts:
        found = tiles(cut, n)
        if 1 < found.count < n:
            yield found


Rule = Callable[..., Any]  # which keys of tiles [n], bool

WHICH: dict[str, Rule] = {
    "": lambda t: t.of >= 0,
    "odd tiles": lambda t: t.of % 2 == 1,
    "even tiles": lambda t: t.of % 2 == 0,
    "all tiles but the first": lambda t: t.of > 0,
    "all tiles but the last": lambda t: t.of < t.of[-1],
    "the first tile": lambda t: t.of == 0,
    "the second tile": lambda t: t.of == 1,
    "the last tile": lambda t: t.of == t.of[-1],
    "the second half of the tiles": lambda t: t.of >= t.count // 2,
    **{f"tiles t with t % 4 = {r}": lambda t, r=r: t.of % 4 == r for r in range(4)},
    **{f"tiles t with t % 3 = {r}": lambda t, r=r: t.of % 3 == r for r in range(3)},
}
"""Words for some tiles, and which they are."""


def places(t: Tiles) -> Iterator[tuple[str, np.ndarray]]:
    """Yield words for some places in tiles, and which keys they are. Shapes: [n]."""
    at, size = t.at, t.size
    yield "", at >= 0
    for parts, name in ((2, "half"), (4, "quarter"), (8, "eighth")):
        for one in range(parts if size >= 2 * parts else 0):
            first, last = one * size // parts, (one + 1) * size // parts
            yield f"{name} {one + 1} of {parts}", (at >= first) & (at < last)
    for few in _FEW:
        if 2 * few < size:
            yield f"the first {few} keys", at < few
            yield f"the last {few} keys", at >= size - few
            last = t.of != t.of[-1]
            yield f"all but the first {few} keys", at >= few
            yield f"the last {few} keys, not of the last tile", last & (at >= size - few)
    for period in (2, 4, 8):
        for one in range(period if size >= 2 * period else 0):
            yield f"each key x with x % {period} = {one}", at % period == one
    for run in (2, 4, 8, 16):
        for one in (0, 1):
            if size >= 4 * run:
                yield f"{('even', 'odd')[one]} runs of {run} keys", at // run % 2 == one


def said(*parts: str) -> str:
    """Return words for a part of the keys, without those that say nothing."""
    return ", ".join(filter(None, parts))


def scopes(t: Tiles, *, whole: bool) -> Iterator[tuple[str, np.ndarray]]:
    """Yield some tiles, some places of all tiles and, if whole, every pair of both.

    Shapes: [n], bool.
    """
    at = list(places(t))
    for (which, some), (where, here) in itertools.product(WHICH.items(), at):
        if not (which and where) or whole:
            yield said(where, which, t.words), some(t) & here
