"""Edits of the weights and of the denominator."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels import defects
from labkernels.numerics.truth.variant import VariantTensors
from labkernels.numerics.verdict.diagnosis.match import Edit
from labkernels.numerics.verdict.diagnosis.program import TINY, Block, Terms, Trial
from labkernels.numerics.verdict.diagnosis.scores import SIGNED
from labkernels.units import LOG2_E


def of_keys(block: Block) -> Iterator[Trial]:
    """Yield changes of the weights of some keys: left out, counted again, without their values."""
    gone = lambda s: Terms(0 * s.w, 0 * s.w, s.v, s.sink)
    yield Trial(defects.MASK, Edit("keys", "left out"), gone, 0.6, scoped=True)
    weighed = Edit("weights of keys", "times")
    yield Trial(defects.WEIGHTS, weighed, gone, 0.8, scoped=True, factors=())
    without = lambda s: Terms(0 * s.w, s.w, s.v, s.sink)
    yield Trial(defects.VALUES, Edit("V", "read as 0"), without, 0.7, scoped=True)
    scaled = Edit("V", "times")
    yield Trial(defects.VALUES, scaled, without, 0.9, scoped=True, factors=())
    below = lambda s: Terms(s.w, 0 * s.w, s.v, s.sink)
    lost = Edit("keys", "missing in the denominator")
    yield Trial(defects.WEIGHTS, lost, below, 0.8, scoped=True)
    flat = lambda s: s.by_scores(s.shaped(0 * s.products))
    yield Trial(defects.SCORES, Edit("scores", "are 0"), flat, 0.8, scoped=True)
    every = lambda s: s.by_scores(s.raw, seen=s.keys >= 0)
    if not block.seen.all():
        yield Trial(defects.MASK, Edit("mask", "left out"), every, 0.7, scoped=True)


def of_rows(block: Block) -> Iterator[Trial]:
    """Yield V and the output by a factor."""
    for kind, operand, cost in ((defects.VALUES, "V", 0.6), (defects.STORE, "output", 0.7)):
        times = lambda s, x: x * s.truth
        yield Trial(kind, Edit(operand, "times"), times, cost, grid=SIGNED)


def of_denominator(block: Block) -> Iterator[Trial]:
    """Yield other denominators: with more or fewer weights, or another sink."""

    def of(operation: str, l: Callable[[Block], Any], *said: float, cost: float = 1.0) -> Trial:
        rows = lambda s: s.truth * s.sums / np.where(np.abs(y := l(s)) > TINY, y, 1.0)
        return Trial(defects.WEIGHTS, Edit("denominator", operation, said), rows, cost)

    yield of("left out", lambda s: np.ones_like(s.sums))
    for t in (16, 32, 64, 128):
        padded = lambda s, t=t: s.sums + (-s.n % t) * np.exp2(-s.top)
        yield of("with keys of score 0 up to a multiple of", padded, t, cost=0.9)
    if not np.isinf(block.sink_logit):
        yield from _sinks(block, of)


def _sinks(block: Block, of: Callable[..., Trial]) -> Iterator[Trial]:
    variant = block.problem.variant or VariantTensors()
    logits = np.asarray(variant.sinks, np.float64) * LOG2_E
    heads = len(logits)
    others = {"left out": lambda h: -np.inf, "of head h + 1": lambda h: logits[(h + 1) % heads]}
    for words, f in others.items():
        l = lambda s, f=f: s.sums - s.sink + np.exp2(np.minimum(f(s.head) - s.top, 100))
        yield of(f"with the sink {words}", l, cost=0.9)


def free(
    blocks: list[Block], explains: Callable[[list[np.ndarray], int], bool]
) -> tuple[tuple[str, ...], Edit] | None:
    """Return the classes of a free factor for each row of the right output, if that explains it.

    explains: whether predicted rows, with so many numbers spent, explain the output.
    """
    rows, spent = [], 0
    for s in blocks:
        own, other = ((x / s.sigma**2).sum(1, keepdims=True) for x in (s.truth**2, s.out * s.truth))
        rows.append(s.truth * other / np.maximum(own, TINY))
        spent += len(own)
    if not explains(rows, spent):
        return None
    return (defects.WEIGHTS, defects.STORE), Edit("row", "times a factor of each row's own")
