"""Some blocks of keys were read wrongly: as zeros, from elsewhere, K for V.

A fit tells which blocks were read rightly, and which in one other way.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis import words
from labkernels.numerics.verdict.diagnosis.structure.gathered import Block, equations_of
from labkernels.numerics.verdict.diagnosis.structure.linear import (
    LEFT,
    Fit,
    Terms,
    fitted,
    left,
    too_many,
)
from labkernels.numerics.verdict.diagnosis.structure.weights import Found

_SIZES = (8, 16, 32, 64, 128)
_SIZES_OF_ZEROS = (1, 4, *_SIZES)
_SOURCES = 3  # other heads, and other requests, that are tried


@dataclass(frozen=True)
class _Reading:
    """Other keys, other values or both: of(block) gives K and V, None for the block's own.

    sizes: the numbers of keys per block that are tried.
    """

    name: str
    of: Callable[[Block], tuple[Any, ...]]
    sizes: tuple[int, ...] = _SIZES


def of_blocks(blocks: list[Block], was: float) -> Iterator[Found]:
    """Yield a name if some blocks of keys were read in another way, alike in all rows."""
    longest = max(block.sheet.kv_len for block in blocks)
    equations = equations_of(blocks)
    if blocks[0].sheet.problem.variant is not None:
        return
    for reading in _readings(blocks):
        for size in reading.sizes:
            n = -(-longest // size)
            if n < 2 or too_many(2 * n, equations):
                continue
            fit = fitted([_terms(block, size, n, reading) for block in blocks], 2 * n, was)
            if fit is None or not fit.explains:
                continue
            found = _named(blocks, fit, size, n, reading, longest)
            if found is not None:
                yield found
                return


def _named(
    blocks: list[Block], fit: Fit, size: int, n: int, reading: _Reading, longest: int
) -> Found | None:
    other = np.flatnonzero(fit.known[:n] & (fit.whole[:n] == 0))
    x = np.concatenate([np.ones(n), np.zeros(n)])
    x[other], x[n + other] = 0.0, 1.0
    rms = left([_terms(block, size, n, reading) for block in blocks], x)
    if not len(other) or not rms <= LEFT:
        return None
    keys = (other[:, None] * size + np.arange(size)).ravel()
    return Found(reading.name, words.of("key", longest)(keys[keys < longest]), rms)


def _terms(block: Block, size: int, n: int, reading: _Reading) -> Terms:
    """Return sums over right blocks, then over wrongly read ones. Shapes: above [R, 2 n, Dv]."""
    k, v = reading.of(block)
    right = np.where(block.seen, block.p, 0.0)
    wrong = right
    if k is not None:
        top = block.sheet.scores.max(1, keepdims=True)
        total = np.exp2(block.sheet.scores - top).sum(1, keepdims=True)
        wrong = np.where(block.seen, np.exp2(block.sheet.q @ k.T - top) / total, 0.0)
    sums = [
        _sums(p, values, size, n)
        for p, values in ((right, block.v), (wrong, block.v if v is None else v))
    ]
    above, below = (np.concatenate(parts, 1) for parts in zip(*sums, strict=True))
    return block.terms(above, below)


def _sums(p: Array, v: Array, size: int, n: int) -> tuple[Any, ...]:
    more = n * size - p.shape[1]
    p = np.pad(p, ((0, 0), (0, more))).reshape(len(p), n, size)
    v = np.pad(v, ((0, more), (0, 0))).reshape(n, size, -1)
    return np.einsum("rna,nad->rnd", p, v), p.sum(2)


def _readings(blocks: list[Block]) -> Iterator[_Reading]:
    """Yield zeros, the block before or after, K and V exchanged, other heads and requests."""
    problem, sheet = blocks[0].sheet.problem, blocks[0].sheet

    def zero(x: Array) -> Array:
        return np.zeros_like(x)

    yield from _of_both("{} read as 0", lambda b: (zero(b.sheet.k), zero(b.v)), _SIZES_OF_ZEROS)
    for size in _SIZES:
        for step, where in ((-size, "before"), (size, "behind")):
            yield from _of_both(
                f"{{}} read from the block of {size} keys {where}",
                lambda b, s=step: tuple(_moved(x, s) for x in (b.sheet.k, b.v)),
                (size,),
            )
    if sheet.k.shape == sheet.v.shape and isinstance(sheet.channels, slice):
        yield _Reading("K and V exchanged", lambda b: (b.v, b.sheet.k))
    for step in range(1, min(problem.kv_heads, _SOURCES + 1)):
        yield from _of_both("{} of another head", lambda b, s=step: _source(b, s, 0))
    for step in range(1, min(problem.batch, _SOURCES + 1)):
        yield from _of_both("{} of another request", lambda b, s=step: _source(b, 0, s))


def _of_both(
    name: str, of: Callable[..., Any], sizes: tuple[int, ...] = _SIZES
) -> Iterator[_Reading]:
    yield _Reading(name.format("K and V"), of, sizes)
    yield _Reading(name.format("K"), lambda b: (of(b)[0], None), sizes)
    yield _Reading(name.format("V"), lambda b: (None, of(b)[1]), sizes)


def _moved(x: Array, step: int) -> Array:
    """Return rows of x from `step` rows further on; rows without such a row stay."""
    at = np.arange(len(x))
    return x[np.where((at + step >= 0) & (at + step < len(x)), at + step, at)]


def _source(block: Block, head: int, request: int) -> tuple[Any, ...]:
    sheet = block.sheet
    head = (sheet.kv_head + head) % sheet.problem.kv_heads
    request = (sheet.request + request) % sheet.problem.batch
    found = []
    for which, own in (("k", sheet.k), ("v", block.v)):
        other = sheet.keys(which, head, request)[: len(own)]
        found.append(np.concatenate([other, own[len(other) :]]))
    return tuple(found)


ALL: tuple[Callable[..., Any], ...] = (of_blocks,)
