"""Channels of Q and K that are mixed up or left out, so that every score is wrong.

Functions take sheets and a misfit, as those of `fitted` do.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis.whole_kernel.fitted import Misfit, best, of_rows
from labkernels.numerics.verdict.diagnosis.whole_kernel.one_rule import Mistake
from labkernels.numerics.verdict.diagnosis.whole_kernel.sheets import Sheet

_BLOCKS, _RUNS, _PARTS = (16, 32, 64, 128), (1, 2, 4, 8, 16), (2, 4)


def of_order(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Channels of K are multiplied by other channels of Q."""
    n = sheets[0].q.shape[-1]
    channel = np.arange(n)
    rules = {f"channel c meets channel (c + {s}) % {n}": (channel + s) % n for s in range(1, n)}
    rules["in reverse"] = channel[::-1]
    rules |= _in_blocks(n)
    for k in (2, 4, 8, 16, 32, 64):
        if n % k == 0 and n > k:
            rules[f"{k} parts interleaved"] = channel.reshape(k, -1).T.ravel()
            rules[f"channel c meets channel c xor {k // 2}"] = channel ^ (k // 2)
    rules = {words: index for words, index in rules.items() if index.max() < n}
    yield from _of_queries(
        sheets,
        misfit,
        "channels of Q or K mixed up",
        {words: (lambda q, i=index: q[..., i]) for words, index in rules.items()},
    )


def _in_blocks(n: int) -> dict[str, Array]:
    """Return orders in which runs of channels of each block go by turns, or no longer do."""
    rules, channel = {}, np.arange(n)
    sizes = [n, *(size for size in _BLOCKS if size < n and n % size == 0)]
    for size, run, parts in itertools.product(sizes, _RUNS, _PARTS):
        if size % (run * parts) or size <= run * parts:
            continue
        inside = np.arange(size).reshape(parts, -1, run).swapaxes(0, 1).ravel()
        for words, order in (("by turns", inside), ("by turns before", np.argsort(inside))):
            said = f"runs of {run} channels of {parts} parts of each {size} {words}"
            rules[said] = channel // size * size + order[channel % size]
    return rules


def of_some(sheets: list[Sheet], misfit: Misfit) -> Iterator[Mistake]:
    """Channels are missing from the products of Q and K, or count twice or with another sign."""
    n = sheets[0].q.shape[-1]
    channel = np.arange(n)
    groups = {f"the last {m}": channel >= n - m for m in range(1, n)}
    groups |= {f"the first {m}": channel < m for m in range(1, n)}
    for size in (1, 2, 4, 8, 16, 32, 64):
        for first in range(size, n - size, size):
            groups[f"channels {first} to {first + size - 1}"] = channel // size == first // size
    for step in (2, 4, 8):
        for first in range(step):
            groups[f"every {step}th from {first} on"] = channel % step == first
    for name, factor in (
        ("channels of Q or K left out", 0.0),
        ("channels of Q or K counted twice", 2.0),
        ("channels of Q or K with the wrong sign", -1.0),
    ):
        changes = {words: _times(np.where(some, factor, 1.0)) for words, some in groups.items()}
        yield from _of_queries(sheets, misfit, name, changes)


def _times(factors: Array) -> Callable[..., Any]:
    return lambda q: q * factors


def _of_queries(
    sheets: list[Sheet], misfit: Misfit, name: str, changes: dict[str, Callable[..., Any]]
) -> Iterator[Mistake]:
    """Yield the change of q that fits best, among those that come nearest to some rows."""
    words = list(changes)

    def each(sheet: Sheet, row: int) -> Array:
        q = np.stack([change(sheet.q[row]) for change in changes.values()])
        scores = sheet.shaped(q @ sheet.k.T) if sheet.problem.variant is None else None
        if scores is None:
            return np.empty((0, sheet.v.shape[-1]))
        scores = np.where(sheet.hidden[row], -np.inf, scores)
        p = np.exp2(scores - scores.max(1, keepdims=True))
        return p @ sheet.v / p.sum(1, keepdims=True)

    chosen = {words[i] for _, _, i in of_rows(sheets, each)}
    yield from best(
        misfit,
        [
            Mistake(
                name,
                some,
                lambda sheet, change=changes[some]: sheet.attend(
                    sheet.masked(sheet.shaped(change(sheet.q) @ sheet.k.T))
                ),
            )
            for some in sorted(chosen)
        ],
    )


ALL = (of_order, of_some)
