"""Factors on whole tiles of keys that differ from row to row: of a merge, or of a rescale.

A split's or a tile's weight depends on the row's maxima, so that a wrong one has no number that
rows share. A row is a sum of its tiles' means: a fit of each row alone gives their weights.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict import significance
from labkernels.numerics.verdict.diagnosis import words
from labkernels.numerics.verdict.diagnosis.structure.gathered import Block
from labkernels.numerics.verdict.diagnosis.structure.linear import LEFT, SMALLER_BY
from labkernels.numerics.verdict.diagnosis.structure.weights import Found
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Cut, directions

_SIZES = (256, 128, 96, 64, 48, 32, 24, 16, 8)
_COUNTS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16)  # of parts of nearly equal sizes, as splits have
_SMALLEST, _LARGEST = 7, 1024  # keys of tiles of any size
_ROWS = 12  # most rows of a block
_SHARE = 0.5  # most numbers per channel: more would explain any row
_KNOWN = 0.05  # largest error of a factor that is read
_ALIKE = 0.02  # factors count as equal if they differ by less than this share
_ERRORS = 5.0  # errors by which two equal factors may differ
_EQUAL = 1e-6  # share by which two equal factors may differ, as the noise of float64 and of fp32
_GROWN_MOST = 1e12  # largest growth of a variance by larger weights
_RANK = 1e-9
_OF_ROW = "the row by a factor of its own"
_EACH = 4  # least channels for each factor of a row
_REQUEST, _HEAD, _KV_HEAD = range(3)
# What may share a factor of rows, by the parts of a row's place. A KV head comes after its heads:
# it counts where each head has too few rows, as in a decode of one request.
_SHARING = {
    "head": [_HEAD],
    "sample": [_REQUEST],
    "head of each sample": [_REQUEST, _HEAD],
    "KV head": [_KV_HEAD],
    "KV head of each sample": [_REQUEST, _KV_HEAD],
}
_SOME, _FEWEST = 0.25, 4  # least share and number of rows of few keys, where keys have factors
_OFTEN = 0.9  # least share of the wrong rows that have as many equations as the fit needs
_MOST = 0.9  # least share of a tile's factors that are alike, where the tile has factors of its own


@dataclass(frozen=True)
class _Row:
    """One fitted row: the factors on its tiles' right weights, their errors, and sum z^2.

    Shapes: tiles, factors, errors [T]. place: its request, head and KV head. whole: the sum of z^2
    if each factor is the nearer of 0 and 1; lost: how many of these are 0.
    """

    place: tuple[int, int, int]
    tiles: np.ndarray
    factors: np.ndarray
    errors: np.ndarray
    square: float
    free: int
    whole: float = 0.0
    lost: int = 0
    shown: int = 0
    reach: int = 0
    usual: float = 1.0


def of_rows(blocks: list[Block], was: float) -> Iterator[Found]:
    """Fit a factor on each tile of each row, with the right denominator or with its own."""
    longest = max(block.sheet.kv_len for block in blocks)
    cuts = [Cut(n) for n in (longest, *_SIZES) if n <= longest]
    cuts[1:1] = [Cut(-n) for n in _COUNTS if n <= longest]
    yield from _of_cuts(blocks, was, cuts)


def of_any_size(blocks: list[Block], was: float) -> Iterator[Found]:
    """Fit a factor on each tile of each row, for tiles of any size: the largest that explain."""
    longest = max(block.sheet.kv_len for block in blocks)
    sizes = [n for n in range(min(longest, _LARGEST) - 1, _SMALLEST, -1) if n not in _SIZES]
    sizes.sort(key=lambda n: n % 4 > 0)  # multiples of 4 first
    yield from _of_cuts(blocks, was, [Cut(n) for n in sizes])


def _of_cuts(blocks: list[Block], was: float, cuts: list[Cut]) -> Iterator[Found]:
    longest = max(block.sheet.kv_len for block in blocks)
    if any(block.sheet.has_sink for block in blocks):
        return
    for cut in cuts:
        for shared in (True, False) if cut.size != longest else (False,):
            rows = _fitted(blocks, cut, shared=shared)
            if rows is None:
                continue
            free = sum(row.free for row in rows)
            rms = float(np.sqrt(sum(row.square for row in rows) / max(free, 1)))
            if free > 0 and rms <= significance.RIGHT_RMS and rms * SMALLER_BY <= was:
                yield _named(rows, cut, longest, rms, shared=shared)
                return


def of_dropped(blocks: list[Block], was: float) -> Iterator[Found]:
    """Fit a factor on each key of each row: 0 for some keys, one other number for the rest.

    The factors of a row follow from its channels if it has few keys; such rows must be many.
    """
    if any(block.sheet.has_sink for block in blocks):
        return
    for shared in (True, False):
        rows = _fitted(blocks, Cut(1), shared=shared)
        if rows is None:
            continue
        equations = sum(row.free + len(row.tiles) for row in rows)
        lost, known = sum(row.lost for row in rows), sum(len(row.tiles) for row in rows)
        rms = float(np.sqrt(sum(row.whole for row in rows) / max(equations, 1)))
        if not (lost and rms <= LEFT and rms * SMALLER_BY <= was):
            continue
        usual = float(np.median([row.usual for row in rows]))
        where = f"{lost} of {known} weights of {len(rows)} rows"
        if shared:
            yield Found("keys left out, other keys in each row", where, rms)
        elif abs(usual - 1) <= _ALIKE:
            yield Found(f"{words.V_LOST}, in other keys of each row", where, rms)
        else:
            name = "weights of keys dropped, others in each row, as by dropout"
            yield Found(name, f"{where}, the rest times {usual:.4g}", rms)
        return


def _fitted(blocks: list[Block], cut: Cut, *, shared: bool) -> list[_Row] | None:
    """Return the fitted rows; None if too many of them have too few equations."""
    found, asked = [], 0
    for block in blocks:
        rows = np.unique(np.linspace(0, len(block.sheet.tokens) - 1, _ROWS).astype(int))
        for row in rows.tolist():
            asked += 1
            fitted = _of_row(block, row, cut, shared=shared)
            if fitted is not None:
                found.append(fitted)
                if len(found) == 1 and fitted.square > 4 * LEFT**2 * fitted.free:
                    return None
    if cut.size == 1:
        return found if len(found) >= max(_SOME * asked, _FEWEST) else None
    shown, reach = sum(row.shown for row in found), sum(row.reach for row in found)
    if shown > _SHARE * reach:  # any weights of keys would be explained by weights of tiles
        return None
    return found if len(found) >= max(_OFTEN * asked, 1) else None


def _of_row(block: Block, row: int, cut: Cut, *, shared: bool) -> _Row | None:
    """Fit the factors of a row. shared: numerator and denominator have the same factors."""
    seen = block.seen[row]
    p = np.where(seen, block.p[row], 0.0)
    starts = cut.starts(len(p))
    below = np.add.reduceat(p, starts)
    tiles = np.flatnonzero(below > 0)
    n = len(tiles) - shared
    out, sigma = block.sheet.out[row], block.sigma[row]
    if n < 1 or n > _SHARE * len(out):
        return None if n > 0 or not shared else _alone(block, row, tiles)
    above = np.add.reduceat(p[:, None] * block.v, starts)[tiles]  # [T, Dv]
    means = above / below[tiles, None]
    for _ in range(2):  # errors of weights grow with the factors, which the first fit gives
        if shared:  # the weights of the means add up to 1
            sides, right = (means[:-1] - means[-1]) / sigma, (out - means[-1]) / sigma
        else:
            sides, right = means / sigma, out / sigma
        length = np.maximum(np.sqrt((sides**2).sum(1)), 1e-300)
        u, s, w = np.linalg.svd((sides / length[:, None]).T, full_matrices=False)
        kept = s > _RANK * s[0]
        x = (w[kept].T / s[kept]) @ (u[:, kept].T @ right) / length
        errors = np.sqrt(((w[kept].T / s[kept]) ** 2).sum(1)) / length
        if shared:
            x, errors = np.append(x, 1 - x.sum()), np.append(errors, np.sqrt((errors**2).sum()))
        left = (out - x @ means) / sigma
        factors = x / below[tiles]
        each = _spread(factors, tiles, len(starts))
        part = (p * np.repeat(each, np.diff(starts, append=len(p)))) ** 2
        grown = part @ block.v**2 / np.maximum(p**2 @ block.v**2, 1e-300)
        sigma = block.sigma[row] * np.sqrt(np.clip(grown, 1.0, _GROWN_MOST))
    place = block.sheet.request, int(block.sheet.heads[row]), block.sheet.kv_head
    errors = errors / below[tiles]
    square, free = float((left**2).sum()), len(out) - int(kept.sum())
    scaled = (shared or cut.size == 1) and (factors > 0.5).any()
    usual = float(np.median(factors[factors > 0.5])) if scaled else 1.0
    near = np.where(factors / usual > 0.5, below[tiles] * (1.0 if shared else usual), 0.0)
    given = near @ means / (near.sum() if shared and near.any() else 1.0)
    whole = float((((out - given) / sigma) ** 2).sum())
    truth = block.sheet.truth[row]
    shown = directions(below[tiles], means - truth, block.sigma[row])
    lost, reach = int((near == 0).sum()), int(block.sheet.reach[row])
    if len(tiles) == 1 and not shared:  # a factor of the row shows in the channels that are not 0
        shown, reach = 1, _seen_channels(block, row)
    return _Row(place, tiles, factors, errors, square, free, whole, lost, shown, reach, usual)


def _seen_channels(block: Block, row: int) -> int:
    return int((np.abs(block.sheet.truth[row]) > significance.SHOWS * block.sigma[row]).sum())


def _spread(x: Array, at: Array, n: int) -> Array:
    found = np.zeros(n)
    found[at] = x
    return found


def _alone(block: Block, row: int, tiles: Array) -> _Row:
    """Return a row that sees one tile: no factor of numerator and denominator changes it."""
    z = (block.sheet.out[row] - block.sheet.truth[row]) / block.sigma[row]
    place = block.sheet.request, int(block.sheet.heads[row]), block.sheet.kv_head
    one = np.ones(len(tiles))
    square = float((z**2).sum())
    return _Row(place, tiles, one, np.inf * one, square, len(z), square)


def _named(rows: list[_Row], cut: Cut, longest: int, rms: float, *, shared: bool) -> Found:
    """Put factors into words: of a row, of keys that are lost, of tiles, or of a merge."""
    row = max(rows, key=lambda one: (np.abs(one.factors - 1) * (one.errors < _KNOWN)).max())
    told = ", ".join(f"{x:.3g}" for x in row.factors[:6])
    where = f"{cut.words}, in one row times {told}" + ", ..." * (len(row.factors) > 6)
    if cut.size == longest:
        each = ", ".join(f"{one.factors[0]:.3g}" for one in rows[:4])
        whose = _whose(rows)
        name = f"factor for each {whose}" if whose else f"denominator of each row wrong: {_OF_ROW}"
        return Found(name, f"times {each}, ...", rms)
    equations = sum(one.free + len(one.tiles) for one in rows)
    off = np.sqrt(sum(one.whole for one in rows) / equations)
    if off <= LEFT and any(one.lost for one in rows):
        lost = "keys left out, as tiles of small weights" if shared else words.V_LOST
        return Found(f"{lost}, in other tiles of each row", where, rms)
    if _of_tiles(rows):
        what = "weights of keys" if shared else "V"
        return Found(f"{what} by a factor for each tile, head and request", where, rms)
    merged, moved = "splits merged with wrong weights", "rescaled wrongly when the maximum moves"
    if shared:
        name = f"{merged} in each row, or o and l {moved}, or {words.BIAS_OF_PARTS}"
    else:
        name = f"o {moved}, by another factor in each row, or {merged}, but a right denominator"
    return Found(name, where, rms)


def _whose(rows: list[_Row]) -> str:
    """Return what shares the factors of rows, as "head of each sample"; "" if they have their own.

    Fewer numbers explain the rows then than one for each.
    """
    for said, own in _SHARING.items():
        groups: dict[tuple[int, ...], list[tuple[float, float]]] = {}
        for row in rows:
            place = tuple(row.place[i] for i in own)
            groups.setdefault(place, []).append((float(row.factors[0]), float(row.errors[0])))
        if 2 * len(groups) <= len(rows) and all(map(_equal, groups.values())):
            return said
    return ""


def _equal(each: list[tuple[float, float]]) -> bool:
    """Return whether factors differ by no more than their errors. each: factors and errors."""
    return bool(_alike(np.array(each)).all())


def _alike(each: np.ndarray) -> np.ndarray:
    """Return which factors differ from the middle one by no more than their errors.

    Shapes: each [N, 2]: factors and errors.
    """
    x, error = each.T
    return np.abs(x - np.median(x)) <= np.maximum(_ERRORS * error, _EQUAL * np.abs(x))


def of_lanes(blocks: list[Block], was: float) -> Iterator[Found]:
    """Fit a factor on each row for each class of channels, as those of a thread have."""
    n = blocks[0].v.shape[1]
    at = np.arange(n)
    for said, label in (
        ("", 0 * at),  # one factor for all channels, where no other family fits it
        *((f"pairs of channels, in turn {k}", at // 2 % k) for k in (2, 4, 8)),
        *((f"every channel, in turn {k}", at % k) for k in (2, 4, 8)),
        *((f"runs of {n // k} channels", at // max(n // k, 1)) for k in (2, 4, 8)),
        *((f"runs of 8 channels, in turn {k}", at // 8 % k) for k in (2, 4)),
    ):
        classes = int(label.max()) + 1
        if classes * _EACH > n or (classes < 2 and said):
            continue
        square, free, rows, seen = 0.0, 0, 0, 0
        for block in blocks:
            some = np.unique(np.linspace(0, len(block.sheet.tokens) - 1, _ROWS).astype(int))
            for row in some.tolist():
                square += _by_class(block, row, label)
                free += n - classes
                rows += 1
                seen += _seen_channels(block, row)
        if rows * classes > _SHARE * seen:
            continue
        rms = float(np.sqrt(square / max(free, 1)))
        if rows and rms <= LEFT and rms * SMALLER_BY <= was:
            each = "another factor in each lane's channels" if said else _OF_ROW
            yield Found(f"denominator of each row wrong: {each}", said, rms)
            return


def _by_class(block: Block, row: int, label: Array) -> float:
    """Return the sum of z^2 of a row that has a factor for each class of channels."""
    out, truth, sigma = block.sheet.out[row], block.sheet.truth[row], block.sigma[row]
    for _ in range(2):
        above = np.bincount(label, out * truth / sigma**2)
        below = np.bincount(label, truth**2 / sigma**2)
        factor = (above / np.where(below > 0, below, 1.0))[label]
        left = (out - factor * truth) / sigma
        sigma = block.sigma[row] * np.maximum(np.abs(factor), 1.0)
    return float((left**2).sum())


def _of_tiles(rows: list[_Row]) -> bool:
    """Return whether the rows of a KV head have the same factors, and there are several such rows.

    Factors of 1 are left out: they are alike whatever makes the others.
    """
    groups: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
    for row in rows:
        for tile, factor, error in zip(row.tiles, row.factors, row.errors, strict=True):
            if error < _ALIKE / 3:
                place = (row.place[_REQUEST], row.place[_KV_HEAD], int(tile))
                groups.setdefault(place, []).append((float(factor), float(error)))
    several = [np.array(x) for x in groups.values() if len(x) > 1]
    wrong = [x for x in several if abs(np.median(x[:, 0]) - 1) > _ERRORS * np.median(x[:, 1])]
    alike = [_alike(x) for x in wrong]
    return bool(alike) and np.concatenate(alike).mean() >= _MOST


ALL = (of_rows, of_dropped, of_lanes)
LATE = (of_any_size,)
