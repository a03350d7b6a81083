"""The numbers that few bits can hold, and what a block of them shares: its scale, its offset."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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

    def rounded(self, x: Array, ties: float = 0.0, to: Callable[..., Any] = np.rint) -> np.ndarray:
        """Return the nearest numbers of the grid, or those that `to` makes of numbers of steps.

        ties: 0 rounds ties to even, -1 toward 0 and 1 away from 0; kernels do all of these. 2 and
        -2 move numbers up and down, as matters where they are cut.
        """
        if ties:
            x = x + np.sign(ties) * _TIE * (np.abs(x) if abs(ties) == 2 else x)
        step: Array | float = 1.0
        if self.fraction is not None:
            exponent = np.frexp(x)[1] - 1
            step = np.ldexp(1.0, np.maximum(exponent, self.emin) - self.fraction)
        return np.clip(to(x / step) * step, -self.most, self.most)

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
    of_all: bool = False  # of all heads and requests

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

    def at(self, each: Array, keys: Array, channels: Array) -> np.ndarray:
        """Return what each block has, for some keys and channels. Shapes: [k, c], broadcastable."""
        rows = keys // self.keys if self.keys and each.shape[0] > 1 else np.zeros(1, int)
        lanes = (
            channels // self.channels if self.channels and each.shape[1] > 1 else np.zeros(1, int)
        )
        return each[rows[:, None], lanes]

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
    *(Blocks(f"page of {n} keys and {c} channels", n, c) for n in (16, 64) for c in (32, 64)),
    *(Blocks(f"channel of {n} keys", n, 1) for n in (8, 4)),
    *(Blocks(f"page of {n} keys", n, 0) for n in (4, 256)),
    Blocks("tensor", 0, 0, of_all=True),
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


def _nearest(grid: Grid, size: Array, overall: float) -> np.ndarray:
    return np.exp2(np.rint(np.log2(_exact(grid, size, overall))))


def _of_two(grid: Grid, size: Array, overall: float) -> np.ndarray:
    of_all = max(overall, _TINY) / (grid.most * formats.named("e4m3").max)
    return rounding.round_to(_exact(grid, size, overall) / of_all, "e4m3") * of_all


def _in_format(fmt: str) -> Scale:
    return lambda grid, size, overall: rounding.round_to(_exact(grid, size, overall), fmt)


def _one_more(grid: Grid, size: Array, overall: float) -> np.ndarray:
    return np.maximum(size, _TINY) / (grid.most + 1)


def _times(factor: float) -> Scale:
    return lambda grid, size, overall: factor * _exact(grid, size, overall)


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
    "its largest over one step more": _one_more,
    "the nearest power of 2": _nearest,
    **{
        f"{x:g} times what it should be": _times(x)
        for x in (0.5, 2.0, 0.25, 0.75, 0.9, 1.5, 4.0, 8.0)
    },
}
"""Words for a scale, and the step of each block from its largest absolute value and that of all."""


def in_fp32(x: Array) -> np.ndarray:
    """Return quotients as kernels compute them."""
    with np.errstate(over="ignore"):
        return x.astype(np.float32).astype(np.float64)
