"""All ways to keep a tensor in few bits: grids, blocks, scales, roundings, zero points, mistakes.

A way is computed from what its blocks have, for some keys and channels alone where that will do.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.narrow import grids
from labkernels.numerics.verdict.diagnosis.whole_kernel.narrow.grids import Blocks, Grid

_TINY = 1e-300
_TIE = 1e-6  # distance of a number of steps from a half at which fp32 may round it either way
_COMMON = 5  # grids that are tried with all scales, and those of other blocks
_SCALES = 4  # kinds of scales that are tried with other grids, too
_EXACT = Grid("exact numbers", 1.0, 52, -1022)
_STEPS = 128 / 255
_LOST_SCALE = "is not applied"
_SQUARES = "transposed in squares of "
_POWERS = (
    "a power of 2",
    "a power of 2 that no number exceeds",
    "a power of 2, half of what it should be",
    "a power of 2, twice what it should be",
    "the nearest power of 2",
)
_READ = ("0.5 times what it should be", "2 times what it should be")
_FEW = 6  # wrong blocks that are tried where numbers are rounded, too
TO: dict[str, Callable[..., Any]] = {
    "": np.rint,
    "cut toward 0": np.trunc,
    "rounded down": np.floor,
    "rounded up": np.ceil,
    "rounded away from 0": lambda x: np.sign(x) * np.ceil(np.abs(x)),
}
"""Words for a rounding, and which number of steps it makes of a number of steps."""

_JOINED: dict[str, tuple[np.ufunc, int]] = {
    f"of {words} {f'of each {n}' if n else 'of all'}": (of, n)
    for words, of in (("the mean", np.add), ("the largest", np.maximum))
    for n in (2, 4, 8, 16, 32, 64, 128, 0)
}
"""Words for a scale of several blocks, what it is of theirs, and of how many; 0 for all."""
Index = Callable[[int], np.ndarray]
OTHERS: dict[str, Index] = {
    "of the block before": lambda n: np.maximum(np.arange(n) - 1, 0),
    "of the block before, the last one for the first": lambda n: (np.arange(n) - 1) % n,
    "of the block behind": lambda n: np.minimum(np.arange(n) + 1, n - 1),
    "of the block behind, the first one for the last": lambda n: (np.arange(n) + 1) % n,
    "of the first block": lambda n: np.zeros(n, int),
    "of the last block": lambda n: np.full(n, n - 1),
    "of the other block of its pair": lambda n: _inside(np.arange(n) ^ 1, n),
    "of the block two places off, within each four": lambda n: _inside(np.arange(n) ^ 2, n),
    "of the first block of its pair": lambda n: np.arange(n) // 2 * 2,
    "of the blocks in reverse": lambda n: np.arange(n)[::-1],
    "of block b / 2": lambda n: np.arange(n) // 2,
    "of block 2 b, around": lambda n: 2 * np.arange(n) % n,
    "of the blocks of each four in another order": lambda n: _swapped(n, 4),
    "of the blocks of each eight in another order": lambda n: _swapped(n, 8),
    "of the first block of each four": lambda n: np.arange(n) // 4 * 4,
    "of the first block of each eight": lambda n: np.arange(n) // 8 * 8,
}
"""Words for the scale of a wrong block, and which of n blocks it is of."""


def _inside(index: Array, n: int) -> np.ndarray:
    return np.where(index < n, index, np.arange(n))


def _swapped(n: int, size: int) -> np.ndarray:
    """Return blocks in which each `size` are transposed, as 2 rows read as 2 columns."""
    at = np.arange(n)
    x = at % size
    return np.where(at < n // size * size, at - x + x * 2 % size + x * 2 // size, at)


class Some:
    """Some keys and channels of a tensor [L, D], with what their blocks have."""

    def __init__(self, x: Array, overall: float, keys: Array | None = None, channels: Any = None):
        """overall: the largest number of all heads and requests; None: all keys or channels."""
        self.whole, self.overall = x, overall
        self.keys = np.arange(len(x)) if keys is None else keys
        self.channels = np.arange(x.shape[1]) if channels is None else channels
        self.x = x[self.keys[:, None], self.channels]
        self.known: dict[Any, np.ndarray] = {}

    def of(self, blocks: Blocks, what: str, other: tuple[int, str] | None = None) -> np.ndarray:
        """Return the largest, least or highest number of each number's block, or of another's."""
        at = blocks, what, other
        if at not in self.known:
            each = self._each(blocks, what)
            if other is not None:
                each = _others(each, *other)
            self.known[at] = blocks.at(each, self.keys, self.channels)
        return self.known[at]

    def _each(self, blocks: Blocks, what: str) -> np.ndarray:
        if blocks.of_all:
            return np.full((1, 1), -self.overall if what == "low" else self.overall)
        at = blocks, what
        if at not in self.known:
            if what == "largest":
                low, high = (self._each(blocks, which) for which in ("low", "high"))
                self.known[at] = np.maximum(np.abs(low), np.abs(high))
            else:
                self.known[at] = blocks.each(
                    self.whole, np.minimum if what == "low" else np.maximum
                )
        return self.known[at]


def _others(each: Array, axis: int, words: str) -> np.ndarray:
    if words.startswith("read as"):
        return each.T.reshape(each.shape)
    if words.startswith(_SQUARES):
        return _in_squares(each, int(words.removeprefix(_SQUARES)))
    if words in _JOINED:
        return _in_groups(each, axis, *_JOINED[words])
    return each.take(OTHERS[words](each.shape[axis]), axis)


def _in_groups(each: Array, axis: int, of: np.ufunc, size: int) -> np.ndarray:
    """Return what groups of blocks have, their mean or their largest, for each block."""
    count = each.shape[axis]
    starts = np.arange(0, count, size or count)
    sizes = np.diff(starts, append=count)
    found = of.reduceat(each, starts, axis=axis)
    if of is np.add:
        found = found / sizes.reshape((-1, 1) if axis == 0 else (1, -1))
    return found.repeat(sizes, axis)


def _in_squares(each: Array, size: int) -> np.ndarray:
    """Return what blocks have, transposed in whole squares of blocks."""
    n, m = (count // size * size for count in each.shape)
    found = each.copy()
    squares = each[:n, :m].reshape(n // size, size, m // size, size)
    found[:n, :m] = squares.swapaxes(1, 3).reshape(n, m)
    return found


@dataclass(frozen=True, eq=False)
class Way:
    """A way to keep a tensor in few bits, in words.

    law: of its scale; read_law: of the scale by which it is read, if that is another. other: the
    axis along which blocks have another's scale, and whose; both: numbers are rounded by that
    scale, too. zero: what happens to the least number of a block. unsigned: the bits of numbers
    below 0 are read as those of large ones.
    """

    name: str
    where: str
    grid: Grid
    blocks: Blocks
    law: str = ""
    to: str = ""
    other: tuple[int, str] | None = None
    both: bool = False
    zero: str = ""
    precision: bool = True
    read_law: str = ""
    unsigned: bool = False

    @property
    def exact(self) -> bool:
        """Whether numbers are not rounded: their scale or their zero point is wrong."""
        return self.grid is _EXACT

    def kept(self, some: Some, ties: float | None = 0.0) -> np.ndarray:
        """Return some numbers as they are kept.

        ties: as of `Grid.rounded`; None: quotients are not rounded to fp32 before they are cut.
        """
        if self.zero:
            return self._from_least(some, ties or 0.0)
        law = grids.SCALES[self.law]
        own = law(self.grid, some.of(self.blocks, "largest"), some.overall)
        read: Any = own
        if self.read_law:
            given = grids.SCALES[self.read_law]
            read = given(self.grid, some.of(self.blocks, "largest"), some.overall)
        if self.other is not None:
            read = 1.0
            if self.other[1] != _LOST_SCALE:
                size = some.of(self.blocks, "largest", self.other)
                read = law(self.grid, size, some.overall)
        own = np.maximum(read if self.both else own, _TINY)
        if self.grid is _EXACT:
            return some.x * (read / own)
        steps = some.x / own if ties is None else grids.in_fp32(some.x / own)
        whole = self.grid.rounded(steps, ties or 0.0, TO[self.to])
        if self.unsigned:
            whole = np.where(whole < 0, whole + 2 * (self.grid.most + 1), whole)
        return whole * read

    def doubt(self, some: Some) -> np.ndarray:
        """Return the variance of numbers that lie between two steps, which any noise may round."""
        if self.exact or self.to or self.grid.fraction is not None or self.zero not in ("", _LEAST):
            return np.zeros_like(some.x)
        low = some.of(self.blocks, "low") if self.zero else 0.0
        if self.zero:
            step = (some.of(self.blocks, "high") - low) / (2 * self.grid.most + 1)
        else:
            step = grids.SCALES[self.law](self.grid, some.of(self.blocks, "largest"), some.overall)
        steps = (some.x - low) / np.maximum(step, _TINY)
        tie = np.abs(steps - np.floor(steps) - 0.5) <= _TIE
        return np.where(tie, step**2 / 2, 0.0)

    def _from_least(self, some: Some, ties: float) -> np.ndarray:
        """Return numbers as steps from the least one of their block, or without it."""
        x, low, high = some.x, some.of(self.blocks, "low"), some.of(self.blocks, "high")
        off = _LOST.get(self.zero)
        if self.grid is _EXACT:
            return x - off(low, high) if off else x
        levels = 2 * self.grid.most + 1
        step = np.maximum(high - low, _TINY) / levels
        if self.zero == _WHOLE:
            zero = np.rint(-low / step)
            return (np.clip(np.rint(grids.in_fp32(x / step)) + zero, 0, levels) - zero) * step
        kept = TO[self.to](grids.in_fp32((x - low) / step) * (1 + ties * 2.0**-22)) * step + low
        if off is not None:
            return kept - off(low, high)
        if self.other is not None:
            return kept - low + some.of(self.blocks, "low", self.other)
        return kept


_LEAST, _WHOLE = "a least number", "a whole zero point"
_LOST: dict[str, Callable[..., Any]] = {
    "the least number, which is not added back": lambda low, high: low,
    "the largest number, which is not added back": lambda low, high: high,
    "the middle, which is not added back": lambda low, high: (low + high) / 2,
    "the least number, which is added twice": lambda low, high: -low,
    "the middle, which is added twice": lambda low, high: -(low + high) / 2,
    "a zero point for unsigned numbers": lambda low, high: -_STEPS * (high - low),
    "a zero point for signed numbers": lambda low, high: _STEPS * (high - low),
    "a zero point for unsigned numbers of 4 bits": lambda low, high: -8 / 15 * (high - low),
    "a zero point for signed numbers of 4 bits": lambda low, high: 8 / 15 * (high - low),
}


def every(shape: tuple[int, ...]) -> Iterator[Way]:
    """Yield the ways to keep a tensor of this shape, the most common ones first."""
    some = [blocks for blocks in grids.BLOCKS if blocks.fits(shape) or blocks.of_all]
    usual = [blocks for blocks in some if blocks in grids.BLOCKS[: grids.USUAL]]
    common, others = grids.GRIDS[:_COMMON], grids.GRIDS[_COMMON:]
    names = list(grids.SCALES)
    for grid, blocks in itertools.product(common, some):
        yield from _of_scales(grid, blocks, names[:_SCALES])
    for blocks in some:
        joined = _JOINED if blocks.keys + blocks.channels == 1 else ()  # of tokens or channels
        yield from _of_others(_EXACT, blocks, (*OTHERS, *joined))
        yield from _of_powers(blocks)
        yield from of_least(_EXACT, blocks, ())
    for grid in grids.GRIDS:
        name, lost = f"{{}} in {grid.name}", (0, _LOST_SCALE)
        yield Way(name, "without a scale", grid, some[-1], other=lost, both=True)
    for grid, blocks in itertools.product(common, usual):
        yield from _of_others(grid, blocks, tuple(OTHERS)[:_FEW])
        if grid.fraction is None:
            name, where = f"{{}} in {grid.name} read without its sign", f"in each {blocks.words}"
            yield Way(name, where, grid, blocks, precision=False, unsigned=True)
        for read in _READ:
            name = f"{{}} in {grid.name} with a wrong scale"
            where = f"that of each {blocks.words}, {read} where it is read"
            yield Way(name, where, grid, blocks, precision=False, read_law=read)
    for grid, blocks in itertools.product(grids.GRIDS, some):
        if grid.fraction is None:
            known = grid in common and blocks in usual
            yield from of_least(grid, blocks, tuple(OTHERS)[:_FEW] if known else ())
    for grid, blocks in itertools.product(grids.GRIDS, usual):
        for to in list(TO)[1:]:
            where = f"{to}, with a scale for each {blocks.words}"
            yield Way(f"{{}} in {grid.name}", where, grid, blocks, to=to)
    for grid, blocks in itertools.product(others, some):
        yield from _of_scales(grid, blocks, names[:2])
    for grid, blocks in itertools.product(common, usual):
        yield from _of_scales(grid, blocks, names[_SCALES:])


def _of_scales(grid: Grid, blocks: Blocks, names: list[str]) -> Iterator[Way]:
    for law in names:
        where = f"with a scale for each {blocks.words}" + f", {law}" * bool(law)
        yield Way(f"{{}} in {grid.name}", where, grid, blocks, law)


def _of_others(grid: Grid, blocks: Blocks, named: tuple[str, ...]) -> Iterator[Way]:
    """Yield ways in which blocks have the scale of another block, or none."""
    exact = grid is _EXACT
    name = "{} with scales of other blocks" if exact else f"{{}} in {grid.name} with a wrong scale"
    ways = [
        (axis, words)
        for axis, size in enumerate((blocks.keys, blocks.channels))
        for words in (named if size else ())
    ]
    if blocks.keys and blocks.channels:
        ways.append((0, "read as [channels, keys] where [keys, channels] lies"))
        ways += [(0, f"{_SQUARES}{n}") for n in (2, 4, 8, 16)]
    if not exact:
        where = f"with a scale for each {blocks.words}, which is not applied"
        lost = (0, _LOST_SCALE)
        yield Way(name, where, grid, blocks, other=lost, precision=False)
    for way, both in itertools.product(ways, (False,) if exact else (False, True)):
        has = "has" if both else "is read with"
        where = f"each {blocks.words} {has} that {way[1]}"
        yield Way(name, where, grid, blocks, other=way, both=both, precision=False)


def _of_powers(blocks: Blocks) -> Iterator[Way]:
    """Yield numbers divided by their block's size, and multiplied by a power of 2 near it."""
    for law in _POWERS:
        where = f"{law} for the size of each {blocks.words}"
        name = "{} with scales that are powers of 2"
        yield Way(name, where, _EXACT, blocks, precision=False, read_law=law)


def of_least(grid: Grid, blocks: Blocks, named: tuple[str, ...]) -> Iterator[Way]:
    """Yield ways with a zero point for each block, kept or not."""
    exact, each = grid is _EXACT, f"for each {blocks.words}"
    name, where = f"{{}} in {grid.name}", f"with a scale and {{}} {each}"
    for zero in () if exact else (_LEAST, _WHOLE):
        yield Way(name, where.format(zero), grid, blocks, zero=zero)
        if zero == _LEAST:
            said = f"{where.format(zero)}, cut toward 0"
            yield Way(name, said, grid, blocks, zero=zero, to="cut toward 0")
    name = "{} with wrong zero points" + f", in {grid.name}" * (not exact)
    for zero in _LOST:
        yield Way(name, f"{zero}, {each}", grid, blocks, zero=zero, precision=False)
    for axis, size in enumerate((blocks.keys, blocks.channels)):
        for words in named if size else ():
            said = f"each {blocks.words} has the least number {words}"
            other = axis, words
            yield Way(name, said, grid, blocks, other=other, zero=_LEAST, precision=False)
