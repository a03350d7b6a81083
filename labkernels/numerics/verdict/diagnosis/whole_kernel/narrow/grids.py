"""The numbers that few bits can hold, and what a block of them shares: its scale, its offset."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from labkernels import formats
from labkernels.numerics import rounding
from labkernels.numerics.arrays import Array

_TINY = 1e-300
_TIE = 2.0**-22  # a relative distance below which a quotient in fp32 may be a tie


@dataclass(frozen=True)
class Grid:
    """Numbers of few bits: integers up to `most`, or floating-point numbers if `fraction` is given.

    emin: the exponent of the smallest normal number.
    """

    name: str
    most: float
    fraction: int | None = None
    emin: int = 0

    def rounded(self, x: Array, ties: float = 0.0) -> np.ndarray:
        """Return the nearest numbers of the grid.

        ties: 0 rounds ties to even, -1 toward 0 and 1 away from 0; kernels do all of these.
        """
        x = x * (1 + ties * _TIE) if ties else x
        step: Array | float = 1.0
        if self.fraction is not None:
            exponent = np.frexp(x)[1] - 1
            step = np.ldexp(1.0, np.maximum(exponent, self.emin) - self.fraction)
        return np.clip(np.rint(x / step) * step, -self.most, self.most)

    @property
    def top(self) -> int:
        """The exponent of the largest number."""
        return math.floor(math.log2(self.most))


def _of_format(name: str) -> Grid:
    fmt = formats.named(name)
    return Grid(name, fmt.max, fmt.fraction_bits, fmt.emin)


GRIDS = (
    Grid("int8", 127),
    _of_format("e4m3"),
    Grid("int4", 7),
    Grid("e2m1", 6, 1, 0),
    _of_format("e5m2"),
    Grid("e3m2", 28, 2, -2),
    Grid("e2m3", 7.5, 3, 0),
    Grid("int6", 31),
    Grid("int5", 15),
    Grid("int3", 3),
    Grid("int2", 1),
)


@dataclass(frozen=True)
class Blocks:
    """How a tensor [L, D] is cut into blocks: of so many keys and channels, 0 for all of them."""

    words: str
    keys: int
    channels: int

    def each(self, x: Array, of: np.ufunc) -> np.ndarray:
        """Return a reduction of each block. Shapes: [blocks of keys, blocks of channels]."""
        for axis, size in ((0, self.keys), (1, self.channels)):
            n = x.shape[axis]
            x = x if size == 1 else of.reduceat(x, np.arange(0, n, size or n), axis=axis)
        return x

    def back(self, each: Array, shape: tuple[int, ...]) -> np.ndarray:
        """Return what each block has, in the place of each of its numbers, or broadcastable."""
        for axis, size in ((0, self.keys), (1, self.channels)):
            n = shape[axis]
            if size > 1 and each.shape[axis] > 1:
                each = each.repeat(size, axis).take(np.arange(n), axis)
        return each

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of this shape has several blocks along each cut."""
        return self.keys < shape[0] and self.channels < shape[1]


_PAGES = (16, 32, 64, 128, 8)
_GROUPS = (32, 16, 8, 64, 4)
BLOCKS = (
    Blocks("token", 1, 0),
    Blocks("head of a request", 0, 0),
    Blocks("channel", 0, 1),
    *(Blocks(f"page of {n} keys", n, 0) for n in _PAGES),
    *(Blocks(f"block of {n} channels of a token", 1, n) for n in _GROUPS),
    *(Blocks(f"channel of {n} keys", n, 1) for n in (32, 64, 128, 16)),
    # rarer ones
    *(Blocks(f"square of {n} keys and channels", n, n) for n in (16, 32, 64)),
    *(Blocks(f"block of {n} channels, for all keys", 0, n) for n in (16, 32, 64)),
)

USUAL = 3 + len(_PAGES) + len(_GROUPS) + 4
"""How many of the blocks are usual ones."""

Scale = Callable[[Grid, Array, float], np.ndarray]


def _exact(grid: Grid, size: Array, overall: float) -> np.ndarray:
    return np.maximum(size, _TINY) / grid.most


def _power(off: int) -> Scale:
    def scale(grid: Grid, size: Array, overall: float) -> np.ndarray:
        return np.exp2(np.floor(np.log2(np.maximum(size, _TINY))) - grid.top + off)

    return scale


def _above(grid: Grid, size: Array, overall: float) -> np.ndarray:
    return np.exp2(np.ceil(np.log2(_exact(grid, size, overall))))


def _of_two(grid: Grid, size: Array, overall: float) -> np.ndarray:
    of_all = max(overall, _TINY) / (grid.most * formats.named("e4m3").max)
    return rounding.round_to(_exact(grid, size, overall) / of_all, "e4m3") * of_all


def _in_format(fmt: str) -> Scale:
    return lambda grid, size, overall: rounding.round_to(_exact(grid, size, overall), fmt)


SCALES: dict[str, Scale] = {
    "": _exact,
    "a power of 2": _power(0),
    "a power of 2, half of what it should be": _power(-1),
    "in e4m3, relative to one for all": _of_two,
    "a power of 2, twice what it should be": _power(1),
    "a power of 2 that no number exceeds": _above,
    "in e4m3": _in_format("e4m3"),
    "in bf16": _in_format("bf16"),
    "in fp16": _in_format("fp16"),
}
"""Words for a scale, and the step of each block from its largest absolute value and that of all."""

OTHERS: dict[str, Callable[[int], np.ndarray]] = {
    "of the block before": lambda n: np.maximum(np.arange(n) - 1, 0),
    "of the block before, the last one for the first": lambda n: (np.arange(n) - 1) % n,
    "of the block behind": lambda n: np.minimum(np.arange(n) + 1, n - 1),
    "of the block behind, the first one for the last": lambda n: (np.arange(n) + 1) % n,
    "of the first block": lambda n: np.zeros(n, int),
    "of the last block": lambda n: np.full(n, n - 1),
}
"""Words for the scale of a wrong block, and which of n blocks it is of."""


def _in_fp32(x: Array) -> np.ndarray:
    """Return quotients as kernels compute them."""
    return x.astype(np.float32).astype(np.float64)


def in_steps(grid: Grid, blocks: Blocks, scale: Scale) -> Callable[..., np.ndarray]:
    """Return a function that keeps numbers in steps of their block's scale."""

    def kept(x: Array, overall: float, ties: float = 0.0) -> np.ndarray:
        size = blocks.each(np.abs(x), np.maximum)
        step = np.maximum(blocks.back(scale(grid, size, overall), x.shape), _TINY)
        return grid.rounded(_in_fp32(x / step), ties) * step

    return kept


def by_others(
    grid: Grid, blocks: Blocks, index: Callable[[int], np.ndarray], axis: int, *, both: bool
) -> Callable[..., np.ndarray]:
    """Return a function that keeps numbers by the scale of their block, and reads by another's.

    both: they are kept by the other block's scale, too, so that large numbers are clipped.
    """

    def kept(x: Array, overall: float, ties: float = 0.0) -> np.ndarray:
        step = _exact(grid, blocks.each(np.abs(x), np.maximum), overall)
        other = blocks.back(step.take(index(step.shape[axis]), axis), x.shape)
        own = other if both else blocks.back(step, x.shape)
        return grid.rounded(_in_fp32(x / own), ties) * other

    return kept


def with_offsets(bits: int, blocks: Blocks) -> Callable[..., np.ndarray]:
    """Return a function that keeps numbers as steps from the least one of their block."""

    def kept(x: Array, overall: float, ties: float = 0.0) -> np.ndarray:
        low = blocks.back(blocks.each(x, np.minimum), x.shape)
        high = blocks.back(blocks.each(x, np.maximum), x.shape)
        step = np.maximum(high - low, _TINY) / (2**bits - 1)
        return np.rint(_in_fp32((x - low) / step) * (1 + ties * _TIE)) * step + low

    return kept
