"""Factors on keys that each query, or each query head, has for itself: another mask, by any rule.

A row's equations show the factors of many keys, and rows of other heads and requests share them.
"""

from collections.abc import Callable, Iterator

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis import words
from labkernels.numerics.verdict.diagnosis.structure import weights
from labkernels.numerics.verdict.diagnosis.structure.gathered import Block
from labkernels.numerics.verdict.diagnosis.structure.weights import Found, Labels

_MOST = 2**9  # keys of a label: more take seconds


def of_queries(blocks: list[Block], was: float) -> Iterator[Found]:
    """Fit factors on the keys of each query, which heads and requests share."""
    if len({int(q) for block in blocks for q in block.query}) < 2:
        return
    longest = max(block.sheet.kv_len for block in blocks)
    each = _apart(blocks, lambda block: block.query)
    asked = np.diff(blocks[0].sheet.problem.q_ends)
    new = int(asked.max())
    told = words.of("new key", new + 1, shift=-1)

    def of_new(block: Block) -> Array:
        m = int(asked[block.sheet.request])
        key = np.arange(block.sheet.kv_len) - (block.sheet.kv_len - m)
        return np.broadcast_to(np.maximum(key + 1, 0), block.p.shape)

    def of_query(block: Block) -> int:
        return int(block.query[0])

    if new < longest:
        yield from weights._of(
            each, was, Labels("new key of each query", of_new, told, True, of_query)
        )
    if longest <= _MOST:
        told = words.of("key", longest)
        yield from weights._of(
            each, was, Labels("key of each query", weights._key, told, True, of_query)
        )


def of_heads(blocks: list[Block], was: float) -> Iterator[Found]:
    """Fit factors on the keys, or the distances, that each query head has for itself."""
    longest = max(block.sheet.kv_len for block in blocks)
    if blocks[0].sheet.problem.q.shape[1] < 2 or longest > _MOST:
        return
    each = _apart(blocks, lambda block: block.sheet.heads)

    def of_head(block: Block) -> int:
        return int(block.sheet.heads[0])

    labels = Labels("key of each head", weights._key, words.of("key", longest), False, of_head)
    yield from weights._of(each, was, labels)

    def distance(block: Block) -> Array:
        return weights._distance(block) + longest

    told = words.of("distance", 2 * longest, shift=-longest)
    yield from weights._of(
        each, was, Labels("distance in each head", distance, told, True, of_head)
    )


def _apart(blocks: list[Block], of: Callable[[Block], np.ndarray]) -> list[Block]:
    return [
        block.of_rows(np.flatnonzero(of(block) == one))
        for block in blocks
        for one in np.unique(of(block))
    ]


ALL = (of_queries, of_heads)
