"""Keys that were read as zeros: both tensors, or one of them; in blocks, or key by key."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics.verdict.diagnosis.structure import words
from labkernels.numerics.verdict.diagnosis.structure.gathered import Block
from labkernels.numerics.verdict.diagnosis.structure.linear import Terms, fitted, left, too_many
from labkernels.numerics.verdict.diagnosis.structure.weights import Found

_SIZES = (1, 4, 8, 16, 32, 64, 128)
_WAYS = ("K and V read as 0", "K read as 0")


def of_zeros(blocks: list[Block], was: float) -> Iterator[Found]:
    """Keys with the weight of a score of 0, with their value or with none."""
    longest = max(block.sheet.kv_len for block in blocks)
    equations = sum(block.sheet.out.size for block in blocks)
    for valued, name in zip((False, True), _WAYS, strict=True):
        for size in _SIZES:
            n = -(-longest // size)
            if n < 2 or too_many(2 * n, equations):
                continue
            terms = [_terms(block, size, n, valued) for block in blocks]
            fit = fitted(terms, 2 * n, was)
            if fit is None or not fit.explains:
                continue
            zero = np.flatnonzero(fit.known[:n] & (fit.whole[:n] == 0))
            x = np.concatenate([np.ones(n), np.zeros(n)])
            x[zero], x[n + zero] = 0.0, 1.0
            rms = left(terms, x)
            if len(zero) and rms <= 1.5:
                keys = (zero[:, None] * size + np.arange(size)).ravel()
                yield Found(name, words.of("key", longest)(keys[keys < longest]), rms)
                return


def _terms(block: Block, size: int, n: int, valued: bool) -> Terms:
    """Sums over blocks of right keys, then of keys of score 0. Shapes: above [R, 2 n, Dv]."""
    length, top = block.sheet.kv_len, block.sheet.scores.max(1, keepdims=True)
    total = np.exp2(block.sheet.scores - top).sum(1, keepdims=True)
    zero = np.where(block.seen, np.exp2(-top) / total, 0.0)
    p, more = np.where(block.seen, block.p, 0.0), n * size - length
    p, zero = (np.pad(x, ((0, 0), (0, more))).reshape(len(p), n, size) for x in (p, zero))
    v = np.pad(block.v, ((0, more), (0, 0))).reshape(n, size, -1)
    right = np.einsum("rna,nad->rnd", p, v)
    wrong = np.einsum("rna,nad->rnd", zero, v) if valued else np.zeros_like(right)
    return block.terms(
        np.concatenate([right, wrong], 1), np.concatenate([p.sum(2), zero.sum(2)], 1)
    )


ALL: tuple[Callable[..., Any], ...] = (of_zeros,)
