"""K, V or Q in few bits, with a scale for each block: the right one, a rounded or another's.

Functions take sheets and a misfit, as those of `fitted` do.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit
from labkernels.numerics.verdict.diagnosis.whole_kernel.narrow import grids
from labkernels.numerics.verdict.diagnosis.whole_kernel.narrow.grids import Blocks, Grid
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet, part
from labkernels.units import LOG2_E

_NUMBERS = 2**26  # numbers that are rounded in the search: with more, it would take seconds
_ROWS = 2  # rows of the first sheet that select the ways that are judged
_JUDGED = 3  # for each tensor
_COMMON = 5  # grids that are tried with all scales, and those of other blocks
_SCALES = 4  # kinds of scales that are tried first
_SHARE = 0.3  # of mean z^2: a way that leaves more in the selecting rows is not judged


@dataclass(frozen=True, eq=False)
class Way:
    """A way to keep a tensor in few bits, in words. kept: returns [L, D] by the largest of all."""

    name: str
    where: str
    kept: Callable[..., np.ndarray]
    precision: bool = True


def ways(shape: tuple[int, ...]) -> Iterator[Way]:
    """Yield the ways to keep a tensor of this shape, the most common ones first."""
    usual = [blocks for blocks in grids.BLOCKS[: grids.USUAL] if blocks.fits(shape)]
    rare = [blocks for blocks in grids.BLOCKS[grids.USUAL :] if blocks.fits(shape)]
    common, others = grids.GRIDS[:_COMMON], grids.GRIDS[_COMMON:]
    names = list(grids.SCALES)
    for grid, blocks in itertools.product(common, usual):
        yield from _of_scales(grid, blocks, names[:_SCALES])
    for grid, blocks in itertools.product(common, usual):
        yield from _of_others(grid, blocks)
    for bits, blocks in itertools.product((8, 4, 2, 3), usual):
        where = f"with a scale and a least number for each {blocks.words}"
        yield Way(f"{{}} in int{bits}", where, grids.with_offsets(bits, blocks))
    for grid, blocks in itertools.product(common, usual):
        yield from _of_scales(grid, blocks, names[_SCALES:])
    for grid, blocks in itertools.product(others, usual):
        yield from _of_scales(grid, blocks, names[:2])
    for grid, blocks in itertools.product(common, rare):
        yield from _of_scales(grid, blocks, names[:2])


def _of_scales(grid: Grid, blocks: Blocks, names: list[str]) -> Iterator[Way]:
    for words in names:
        where = f"with a scale for each {blocks.words}" + f", {words}" * bool(words)
        yield Way(f"{{}} in {grid.name}", where, grids.in_steps(grid, blocks, grids.SCALES[words]))


def _of_others(grid: Grid, blocks: Blocks) -> Iterator[Way]:
    """Yield ways in which blocks have the scale of another block."""
    for axis, size in enumerate((blocks.keys, blocks.channels)):
        if size == 0:
            continue
        for words, index in grids.OTHERS.items():
            for both in (False, True):
                yield Way(
                    f"{{}} in {grid.name} with a wrong scale",
                    f"each {blocks.words} {'has' if both else 'is read with'} that {words}",
                    grids.by_others(grid, blocks, index, axis, both=both),
                    precision=False,
                )


def of_keys(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """K, V or both are kept in few bits, with scales of blocks."""
    worst = sheets[0]
    z = (((worst.out - worst.truth) / worst.sigma) ** 2).mean(1)
    few = part(worst, np.argsort(-z)[:_ROWS])
    if not isinstance(worst.channels, slice):
        return
    most = max(1, _NUMBERS // max(worst.k.size + worst.v.size, 1))
    found: dict[str, list[tuple[float, int, Way]]] = {"K": [], "V": [], "K and V": []}
    shape = len(worst.k), min(worst.k.shape[1], worst.v.shape[1])
    for i, way in enumerate(itertools.islice(ways(shape), most)):
        k, v = _kept(few, "k", way), _kept(few, "v", way)
        scores = few.masked(few.shaped(few.q @ k.T))
        for what, given in (
            ("K", few.attend(scores)),
            ("V", few.attend(few.scores, v)),
            ("K and V", few.attend(scores, v)),
        ):
            left = float((((few.out - given) / few.sigma) ** 2).mean())
            found[what].append((left, i, way))
    before = float((((few.out - few.truth) / few.sigma) ** 2).mean())
    for what, tried in found.items():
        for left, _, way in sorted(tried, key=lambda one: one[:2])[:_JUDGED]:
            if left <= max(_SHARE * before, 4.0):
                outputs = _rounding(_outputs, what, way, misfit)
                cost = 2.0 + (not way.precision)
                name = way.name.format(what)
                yield Mistake(name, way.where, outputs, way.precision, cost=cost)


def _rounding(
    outputs: Callable[..., Any], what: str, way: Way, misfit: Misfit
) -> Callable[..., Any]:
    """Return the outputs with ties rounded in the direction that fits best."""
    each = [lambda sheet, t=ties: outputs(sheet, what, way, t) for ties in (0.0, -1.0, 1.0)]
    return min(each, key=misfit)


def _kept(sheet: Sheet, which: str, way: Way, ties: float = 0.0) -> np.ndarray:
    overall = sheet.once((which, "largest"), lambda: np.array(sheet.largest(which)))
    return way.kept(sheet.keys(which), float(overall), ties)


def _outputs(sheet: Sheet, what: str, way: Way, ties: float) -> Array:
    k = _kept(sheet, "k", way, ties) if "K" in what else sheet.k
    scores = sheet.masked(sheet.shaped(sheet.q @ k.T)) if "K" in what else sheet.scores
    return sheet.attend(scores, _kept(sheet, "v", way, ties) if "V" in what else sheet.v)


def of_queries(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Q is kept in few bits, with a scale for each token or block of its channels."""
    if sheets[0].problem.variant is not None:
        return
    few = [part(sheet, slice(None, None, max(1, len(sheet.tokens) // _ROWS))) for sheet in sheets]
    found = []
    for i, way in enumerate(ways((2, sheets[0].q.shape[1]))):
        if way.precision and "token" in way.where:
            left = misfit(lambda sheet, by=way: _with_queries(sheet, "Q", by, 0.0), few)
            found.append((left, i, way))
    for _, _, way in sorted(found, key=lambda one: one[:2])[:_JUDGED]:
        outputs = _rounding(_with_queries, "Q", way, misfit)
        yield Mistake(way.name.format("Q"), way.where, outputs, True, cost=2.0)


def _with_queries(sheet: Sheet, what: str, way: Way, ties: float) -> Array:
    unit = sheet.problem.scale * LOG2_E
    plain = (sheet.q / unit).astype(np.float32).astype(np.float64)  # exactly Q, to keep its ties
    q = unit * way.kept(plain, float(np.abs(plain).max()), ties)
    return sheet.attend(sheet.masked(q @ sheet.k.T))


ALL = (of_keys, of_queries)
