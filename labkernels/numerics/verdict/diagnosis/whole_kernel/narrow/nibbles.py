"""K or V in four bits whose numbers come out of their bytes or words in another order.

Functions take sheets and a misfit, as those of `fitted` do.
"""

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit
from labkernels.numerics.verdict.diagnosis.whole_kernel.narrow import grids, ways
from labkernels.numerics.verdict.diagnosis.whole_kernel.narrow.ways import Way
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.products.screens import worst
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet

_FOUR_BITS = ("int4", "e2m1")
_JUDGED = 4
_NUMBERS = 2**20  # numbers of K and V: with more, it would take seconds


def _halves(c: Array) -> np.ndarray:
    """Return channels of which the first half lies in low nibbles, the second in high ones."""
    half = len(c) // 2
    return np.where(c < 2 * half, c % 2 * half + c // 2, c)


def _in_blocks(order: Callable[[Array], np.ndarray], size: int) -> Callable[[Array], np.ndarray]:
    """Return an order within each block of channels; what fills no block stays."""

    def of(c: Array) -> Array:
        found = c // size * size + order(np.arange(size))[c % size]
        return np.where(c < len(c) // size * size, found, c)

    return of


def _back(c: Array) -> np.ndarray:
    return np.argsort(_halves(c))


_BLOCKS = (16, 32, 64)
_ORDERS: dict[str, Callable[[Array], np.ndarray]] = {
    "swapped in pairs": lambda c: np.where((c ^ 1) < len(c), c ^ 1, c),
    "in reverse in each 8": lambda c: np.where((c ^ 7) < len(c), c ^ 7, c),
    "of two halves by turns": _halves,
    "in two halves, of which they were by turns": _back,
    **{f"of two halves by turns, in each {n}": _in_blocks(_halves, n) for n in _BLOCKS},
    **{
        f"in two halves, of which they were by turns, in each {n}": _in_blocks(_back, n)
        for n in _BLOCKS
    },
}


def _ways(sheet: Sheet) -> Iterator[Way]:
    """Yield the ways to keep numbers in four bits with a scale, or with a least number too."""
    shape = len(sheet.k), min(sheet.k.shape[1], sheet.v.shape[1])
    some = [blocks for blocks in grids.BLOCKS[: grids.USUAL] if blocks.fits(shape)]
    for grid in (grid for grid in grids.GRIDS if grid.name in _FOUR_BITS):
        for blocks, law in itertools.product(some, ("", "a power of 2")):
            said = f"with a scale for each {blocks.words}" + f", {law}" * bool(law)
            yield Way(grid.name, said, grid, blocks, law)
        for blocks in some if grid.fraction is None else ():
            yield from ways.of_least(grid, blocks, ())


def of_orders(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """K or V is kept in four bits, and its channels are read in another order."""
    sheet = sheets[0]
    if not isinstance(sheet.channels, slice) or sheet.k.size + sheet.v.size > _NUMBERS:
        return
    row = worst(sheets, 1)[0]
    found = []
    for i, (way, which) in enumerate(itertools.product(_ways(sheet), "vk")):
        x = way.kept(ways.Some(row.keys(which), 1.0))
        for words, order in _ORDERS.items():
            given = _read(row, which, x, order)
            left = float((((given - row.out) / row.sigma) ** 2).mean())
            found.append((left, i, words, way, which))
    for left, _, words, way, which in sorted(found, key=lambda one: one[:2])[:_JUDGED]:
        if np.isfinite(left):
            yield Mistake(
                f"{which.upper()} in {way.grid.name} with its channels in another order",
                f"{words}; {way.where}",
                lambda s, w=way, of=_ORDERS[words], name=which: _read(
                    s, name, w.kept(ways.Some(s.keys(name), 1.0)), of
                ),
                cost=2.0,
            )


def _read(sheet: Sheet, which: str, x: Array, order: Callable[[Array], np.ndarray]) -> Array:
    """Return the outputs if K or V is x [L, D], with its channels in another order."""
    x = x[:, order(np.arange(x.shape[1]))]
    if which == "v":
        return sheet.attend(sheet.scores, x)
    return sheet.attend(sheet.masked(sheet.shaped(sheet.q @ x.T)))


ALL = (of_orders,)
