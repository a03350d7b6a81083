"""Factors on the right weights of keys, or of groups of keys by place, block, distance or rank.

A factor 0 shows keys that were lost, a factor 2 shows keys that came twice.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis import words
from labkernels.numerics.verdict.diagnosis.structure.gathered import Block, equations_of
from labkernels.numerics.verdict.diagnosis.structure.linear import (
    Fit,
    Terms,
    fitted,
    left,
    too_many,
)

_PERIODS = (8, 16, 32, 64, 128, 12, 24, 48, 96)
_SIZES = (4, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # keys of a block
_NONE = 0.01  # part of the usual factor: below it a key was not read
_TILES = (8, 16, 32, 64)


@dataclass(frozen=True)
class Found:
    """A name, a place, and the rms of z that is left; vague: a fitted number has no other name."""

    name: str
    where: str
    rms: float
    vague: bool = False
    precision: bool = False


@dataclass(frozen=True)
class Labels:
    """Keys of rows in groups. of: the group of each row's keys in a block [R, L], -1 for none.

    told: puts some groups into words. hidden: hidden keys count too. apart: only blocks for which
    this function gives the same share their numbers.
    """

    what: str
    of: Callable[[Block], np.ndarray]
    told: Callable[[np.ndarray], str]
    hidden: bool = False
    apart: Callable[[Block], object] = lambda block: 0


def _distance(block: Block) -> Array:
    return block.sheet.places - np.arange(block.sheet.kv_len)[None]


def _key(block: Block) -> Array:
    return np.broadcast_to(np.arange(block.sheet.kv_len), block.p.shape)


def _rank(block: Block) -> Array:
    return np.argsort(np.argsort(-np.where(block.seen, block.p, -1.0), 1, kind="stable"), 1)


def of_weights(blocks: list[Block], was: float) -> Iterator[Found]:
    """Fit factors on keys by their place, their distance and their rank."""
    longest = max(block.sheet.kv_len for block in blocks)
    many = any(len(np.unique(block.query)) > 1 for block in blocks)
    yield from _of(blocks, was, Labels("key", _key, words.of("key", longest)))
    for apart, whose in _APART:
        told = words.of("key", longest)
        yield from _of(blocks, was, Labels(f"key of each {whose}", _key, told, apart=apart))
    for size in _SIZES:
        if size < longest:
            yield from _of(blocks, was, _in_blocks(size, longest))
    for period in _PERIODS:
        if period < longest:
            yield from _of(blocks, was, _by_residue(period, longest))
    if many:
        base = longest

        def distance(block: Block) -> Array:
            return _distance(block) + base

        told = words.of("distance", 2 * longest, shift=-base)
        yield from _of(blocks, was, Labels("distance", distance, told, hidden=True))
        for apart, whose in _APART:
            yield from _of(
                blocks, was, Labels(f"distance in each {whose}", distance, told, True, apart)
            )
        for size in _TILES:
            if size < longest:
                yield from _of(blocks, was, _in_tile(size))
    yield from _of(blocks, was, Labels("rank of its score", _rank, words.of("rank", longest)))


_APART = (
    (lambda block: int(block.sheet.request), "sample"),
    (lambda block: int(block.sheet.kv_head), "KV head"),
)


def _in_blocks(size: int, longest: int) -> Labels:
    """Return blocks of keys, each cut in two where the last, partial block ends."""
    keys, tail = np.arange(longest), longest % size
    group = 2 * (keys // size) + (keys % size >= tail)
    told = words.of("key", longest)
    return Labels(
        f"block of {size} keys",
        lambda block: np.broadcast_to(group[: block.sheet.kv_len], block.p.shape),
        lambda groups: told(keys[np.isin(group, groups)]),
    )


def _by_residue(period: int, longest: int) -> Labels:
    keys = np.arange(longest)
    told = words.of("key", longest)
    return Labels(
        f"key % {period}",
        lambda block: np.broadcast_to(np.arange(block.sheet.kv_len) % period, block.p.shape),
        lambda groups: told(keys[np.isin(keys % period, groups)]),
    )


def _in_tile(size: int) -> Labels:
    def of(block: Block) -> Array:
        key = np.arange(block.sheet.kv_len)[None] % size
        return block.sheet.places % size * size + key

    def told(groups: Array) -> str:
        pairs = [f"(query {g // size}, key {g % size})" for g in groups.tolist()[:4]]
        return f"of tiles of {size} x {size}: {', '.join(pairs)}" + ", ..." * (len(groups) > 4)

    return Labels(f"place in a tile of {size} x {size}", of, told)


def _of(blocks: list[Block], was: float, labels: Labels) -> Iterator[Found]:
    for kind in ("p", "v"):
        parts: dict[object, list[Block]] = {}
        for block in blocks:
            parts.setdefault(labels.apart(block), []).append(block)
        if len(parts) == 1 and labels.what != "key" and " each " in labels.what:
            return
        fits = [(some, *_fit(some, was, labels, kind)) for some in parts.values()]
        if not all(fit is not None and fit.explains for _, fit, _, _ in fits):
            continue
        yield from _named(fits, labels, kind)
        return


def _fit(
    blocks: list[Block], was: float, labels: Labels, kind: str
) -> tuple[Fit | None, Array, tuple[list[Terms], Array, list[Block], list[Array]] | None]:
    each = [np.where(block.seen | labels.hidden, labels.of(block), -1) for block in blocks]
    numbers = np.unique(np.concatenate([x.ravel() for x in each]))
    numbers = numbers[numbers >= 0]
    if too_many(len(numbers), equations_of(blocks)) or len(numbers) < 2:
        return None, numbers, None
    terms = [_terms(block, x, numbers, kind) for block, x in zip(blocks, each, strict=True)]
    right = np.ones(len(numbers))
    return fitted(terms, len(numbers), was), numbers, (terms, right, blocks, each)


def _terms(block: Block, label: Array, numbers: Array, kind: str) -> Terms:
    index = np.searchsorted(numbers, label)
    n, (rows, keys) = len(numbers), label.shape
    p = np.where(label >= 0, block.p, 0.0)
    if all((index == index[:1]).all(0)) and n == keys:  # each key is a group of its own
        return block.terms(p[:, :, None] * block.v, p if kind == "p" else None)
    above, below = np.zeros((rows, n, block.v.shape[1])), np.zeros((rows, n))
    for row in range(rows):
        own = label[row] >= 0
        spread = np.zeros((n, keys))
        spread[index[row, own], np.flatnonzero(own)] = p[row, own]
        above[row], below[row] = spread @ block.v, spread.sum(1)
    return block.terms(above, below if kind == "p" else None)


def _named(fits: list[tuple[Any, ...]], labels: Labels, kind: str) -> Iterator[Found]:
    """Yield words for fits that explain all rows: for whole numbers, or else for factors."""
    vague = _VAGUE[kind]
    places, counts, worst, whole, moved = [], set(), 0.0, True, True
    for _, fit, numbers, (terms, _, blocks, each) in fits:
        right = _right_ones(blocks, each, numbers)
        rounded = np.where(fit.known, fit.whole, right)
        if np.isnan(rounded).any() or left(terms, rounded) > 1.5:
            whole = False
            break
        worst = max(worst, left(terms, rounded))
        wrong = (rounded != right) & fit.known
        # as many hidden keys as are lost, but for those whose number is not known
        moved &= abs(rounded[wrong].sum() - right[wrong].sum()) <= (~fit.known).sum()
        counts |= {(int(a), int(b)) for a, b in zip(right[wrong], rounded[wrong], strict=True)}
        said = labels.told(numbers[wrong])
        places.append(said if said not in places else "")
    if whole and counts:
        name = _name(counts, kind)
        if moved and kind == "p" and counts == {(0, 1), (1, 0)}:
            name += ", or keys read in another order"
        yield Found(name, "; ".join(filter(None, places[:3])), worst)
        return
    _, fit, numbers, _ = fits[0]
    some = np.flatnonzero(fit.known)
    some = some[np.unique(np.linspace(0, len(some) - 1, 6).astype(int))]
    told = ", ".join(f"{labels.told(numbers[i : i + 1])} times {fit.x[i]:.3g}" for i in some)
    name = vague.format(labels.what)
    if kind == "p" and "key" in labels.what and (np.abs(fit.x[fit.known]) < _NONE).any():
        name = f"some keys read again, others not at all: {name}"
    if kind == "p" and labels.what.startswith("distance"):
        name = f"bias by position: {name}"
    yield Found(name, told, max(fit.rms for _, fit, _, _ in fits), vague=True)


def _right_ones(blocks: list[Block], each: list[Array], numbers: Array) -> np.ndarray:
    """Return 1 for groups of keys that a row sees, 0 for those that are hidden."""
    found = np.zeros(len(numbers))
    for block, label in zip(blocks, each, strict=True):
        seen = np.unique(label[block.seen & (label >= 0)])
        found[np.searchsorted(numbers, seen)] = 1.0
    return found


_VAGUE = {
    "p": "weights of keys by a factor, as of a bias of their scores, for each {}",
    "v": "V by a factor for each {}",
}


def _name(counts: set[tuple[int, int]], kind: str) -> str:
    if kind == "v":
        return words.V_LOST if counts == {(1, 0)} else "V counted twice"
    if any(right == 0 for right, _ in counts):
        if any(given > 1 for _, given in counts):  # no mask shows a key twice
            return "keys read from elsewhere, hidden ones too, some twice"
        return "another mask: keys that the mask hides" + ", and keys left out" * ((1, 0) in counts)
    if counts == {(1, 0)}:
        return "keys left out"
    if all(given > 1 for _, given in counts):
        return "keys counted twice"
    return "keys read from elsewhere, some twice and others not at all"
