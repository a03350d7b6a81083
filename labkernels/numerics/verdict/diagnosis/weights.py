"""Edits of the weights, of the denominator, and of the merge of a row's parts."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkernels import defects
from labkernels.numerics.truth.variant import VariantTensors
from labkernels.numerics.verdict.diagnosis.match import Edit
from labkernels.numerics.verdict.diagnosis.program import TINY, Block, Terms, Trial
from labkernels.numerics.verdict.diagnosis.scores import SIGNED
from labkernels.units import LOG2_E

_PARTS = (8, 16, 32, 48, 64, 96, 128, 256, 512, 1024)
_COUNTS = (1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64)


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
    turned = lambda s: s.by_scores(s.shaped(-s.products))
    yield Trial(defects.SCORES, Edit("scores", "with the sign turned"), turned, 0.9, scoped=True)


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
    for count in _COUNTS:
        zeros = lambda s, k=count: s.sums + k * np.exp2(-s.top)
        yield of("with keys of score 0, as many as", zeros, count)
    for t in (16, 32, 64, 128):
        padded = lambda s, t=t: s.sums + (-s.n % t) * np.exp2(-s.top)
        yield of("with keys of score 0 up to a multiple of", padded, t, cost=0.9)
    every = lambda s: s.weights(s.raw, s.keys >= 0).sum(1, keepdims=True) + s.sink
    yield of("of hidden keys too", every)
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


def of_parts(block: Block) -> Iterator[Trial]:
    """Yield wrong merges of splits, and wrong rescales between tiles."""
    equal = {-(-block.n // parts) for parts in (2, 3, 4)}
    for size in sorted({x for x in (*_PARTS, *equal) if x < block.n}):
        yield from _merges(size)
        for words, of in _RESCALES.items():
            loop = lambda s, size=size, of=of: _rescaled(s, size, of)
            yield Trial(defects.WEIGHTS, Edit("tiles", words, (size,)), loop, 1.1)


def _parts(s: Block, size: int) -> tuple[np.ndarray, ...]:
    """Return m, l and o of tiles, relative to their own maxima: [R, T], [R, T], [R, T, Dv]."""
    name = "parts", size, s.request, s.head, s.tokens.tobytes(), str(s.channels)
    if name not in s.case.notes:
        starts = np.arange(0, s.n, size)
        m = np.maximum.reduceat(np.where(s.seen, s.raw, -np.inf), starts, axis=1)
        of_key = np.repeat(np.where(np.isinf(m), 0, m), size, axis=1)[:, : s.n]
        w = np.where(s.seen, np.exp2(np.where(s.seen, s.raw - of_key, 0)), 0)
        o = [w[:, a : a + size] @ s.v[a : a + size] for a in starts]
        s.case.notes[name] = m, np.add.reduceat(w, starts, axis=1), np.stack(o, 1)
    found: tuple[np.ndarray, ...] = s.case.notes[name]
    return found


def _merges(size: int) -> Iterator[Trial]:
    def of(operation: str, weigh: Callable[..., Any], *, divided: bool = True) -> Trial:
        def rows(s: Block) -> np.ndarray:
            m, l, o = _parts(s, size)
            lse = np.where(l > 0, m + np.log2(np.maximum(l, TINY)), -np.inf)
            top = lse.max(1, keepdims=True)
            f = np.where(l > 0, weigh(m, l, lse - top), 0)
            o = o / np.where(l > 0, l, 1)[..., None] if divided else o
            sink = np.exp2(np.minimum(s.sink_logit - top, 100))
            total = f.sum(1, keepdims=True) + sink
            found: np.ndarray = (f[..., None] * o).sum(1) / np.where(total == 0, 1, total)
            return found

        return Trial(defects.MERGE, Edit("splits", operation, (size,)), rows)

    yield of("not weighted, of", lambda m, l, e: 1 + 0 * l)
    yield of("weighted by their sums alone, of", lambda m, l, e: l)
    yield of("weighted by their maxima alone, of", lambda m, l, e: np.exp2(m - m.max(1)[:, None]))
    yield of("not divided by their sums, of", lambda m, l, e: np.exp2(e), divided=False)
    yield of("weighted by exp of base-2 sums, of", lambda m, l, e: np.exp(e))
    yield of("weighted by exp2 of natural sums, of", lambda m, l, e: np.exp2(e / LOG2_E))
    yield of("with the weight of the next one, of", lambda m, l, e: np.roll(np.exp2(e), -1, 1))


Factors = Callable[[np.ndarray, np.ndarray], tuple[Any, Any]]
# Factors of o and of l where a maximum moves: right is by, the old maximum over the new one.
_RESCALES: dict[str, Factors] = {
    "with o not rescaled, of": lambda by, stale: (1.0, by),
    "with l not rescaled, of": lambda by, stale: (by, 1.0),
    "with neither o nor l rescaled, of": lambda by, stale: (1.0, 1.0),
    "with o rescaled by the step before, of": lambda by, stale: (stale, by),
}


def _rescaled(s: Block, size: int, factors: Factors) -> np.ndarray:
    m, l, o = _parts(s, size)
    low = np.where(np.isinf(m), -1e3, m)
    run, stale = low[:, :1], np.ones((len(m), 1))
    out, total = o[:, 0], l[:, :1]
    for i in range(1, m.shape[1]):
        top = np.maximum(run, low[:, i : i + 1])
        by, new = np.maximum(np.exp2(run - top), TINY), np.exp2(low[:, i : i + 1] - top)
        of_o, of_l = factors(by, stale)
        out, total = out * of_o + new * o[:, i], total * of_l + new * l[:, i : i + 1]
        run, stale = top, by
    return out / np.maximum(total + np.exp2(np.minimum(s.sink_logit - run, 100)), TINY)


def free(
    blocks: list[Block], explains: Callable[[list[np.ndarray], int], bool]
) -> tuple[tuple[str, ...], Edit] | None:
    """Return the classes that free factors of the right output explain: of heads, channels, rows.

    explains: whether predicted rows, with so many numbers spent, explain the output.
    """
    ways: tuple[tuple[str, str, Any, tuple[str, ...]], ...] = (
        ("V", "head", (0, 1), (defects.VALUES,)),
        ("V", "channel", 0, (defects.VALUES,)),
        ("row", "row", 1, (defects.WEIGHTS, defects.STORE)),
    )
    for operand, each, axis, kinds in ways:
        owners = [i if each == "row" else s.head for i, s in enumerate(blocks)]
        sums: dict[int, Any] = {}
        for owner, s in zip(owners, blocks, strict=True):
            pair = np.stack([s.out * s.truth, s.truth**2]) / s.sigma**2
            own = [x.sum(axis, keepdims=True) for x in pair]
            sums[owner] = [x + y for x, y in zip(sums.get(owner, (0.0, 0.0)), own, strict=True)]
        factors = {owner: a / np.maximum(b, TINY) for owner, (a, b) in sums.items()}
        rows = [s.truth * factors[owner] for owner, s in zip(owners, blocks, strict=True)]
        if explains(rows, sum(x.size for x in factors.values())):
            return kinds, Edit(operand, f"times a factor of each {each}'s own")
    return None
