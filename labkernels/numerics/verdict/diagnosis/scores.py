"""Edits of the scores and of the mask."""

import math
from collections.abc import Callable, Iterator

import numpy as np

from labkernels import defects
from labkernels.numerics.arrays import Array
from labkernels.numerics.truth.variant import VariantTensors
from labkernels.numerics.verdict.diagnosis.match import Edit
from labkernels.numerics.verdict.diagnosis.program import Block, Trial
from labkernels.units import LOG2_E

POWERS = np.exp2(np.linspace(-6, 6, 37))
SIGNED = np.concatenate([-POWERS[::-1], POWERS])


def numbers(block: Block) -> Iterator[Trial]:
    """Yield changes of the scores by one number: of the scale, a cap, slopes."""
    variant = block.problem.variant or VariantTensors()

    def of(operation: str, f: Callable[..., Array], grid: Array, operand: str = "scores") -> Trial:
        scores = lambda s, x: s.by_scores(f(s, x))
        return Trial(defects.SCORES, Edit(operand, operation), scores, 1.0, grid=grid)

    yield of("times", lambda s, x: s.shaped(x * s.products), SIGNED, "scale")
    if not variant.soft_cap:
        caps = np.exp2(np.linspace(-2, 8, 41))
        yield of("capped at", lambda s, x: capped(s.raw, x * LOG2_E), caps)
    else:
        cap = variant.soft_cap * LOG2_E
        biased = lambda s, y: y + s.raw - capped(s.products, cap)
        left_out = lambda s: s.by_scores(biased(s, s.products))
        yield Trial(defects.SCORES, Edit("soft cap", "left out"), left_out, 0.5)
        yield of("times", lambda s, x: biased(s, capped(s.products, cap * x)), POWERS, "soft cap")
    if variant.alibi is None:
        return
    given = np.asarray(variant.alibi, np.float64)
    distance = lambda s: (s.keys - s.places) * LOG2_E
    extra = lambda s, x: s.raw + (x - 1) * given[s.head] * distance(s)
    yield of("times", extra, SIGNED, "slopes")
    others = {"left out": lambda h: 0.0, "of head h + 1": lambda h: given[(h + 1) % len(given)]}
    for words, f in others.items():
        slopes = lambda s, f=f: s.by_scores(s.raw + (f(s.head) - given[s.head]) * distance(s))
        yield Trial(defects.SCORES, Edit("slopes", words), slopes, 0.8)


def capped(products: Array, cap: float) -> np.ndarray:
    """Return capped scores. Units: log2 units."""
    return cap * np.tanh(products / cap)


def known(x: float, block: Block) -> str:
    """Return what a factor of the scale is, if it is one of the usual ones; else ""."""
    scale, d, dv = block.problem.scale, block.problem.q.shape[-1], block.problem.out_shape[-1]
    names = {
        1 / scale: "the scale left out",
        scale: "the scale applied twice",
        LOG2_E: "log2(e) applied twice",
        1 / LOG2_E: "log2(e) left out",
        -1.0: "the sign turned",
        1 / (scale * math.sqrt(d)): f"1 / sqrt({d}) for {scale:.4g}",
        1 / (scale * math.sqrt(dv)): f"1 / sqrt({dv}) for {scale:.4g}",
    }
    for other in (32, 64, 80, 96, 112, 128, 192, 256, 576):
        names.setdefault(1 / (scale * math.sqrt(other)), f"1 / sqrt({other}) for {scale:.4g}")
    nearest = min(names, key=lambda y: abs(x / y - 1))
    return names[nearest] if abs(x / nearest - 1) < 2e-3 and abs(x - 1) > 2e-3 else ""


def masks(block: Block) -> Iterator[Trial]:
    """Yield other masks: left out, shifted, of whole tiles, another window."""
    problem, variant = block.problem, block.problem.variant
    window = None if variant is None else variant.window_left

    def of(
        operation: str, seen: Callable[[Block], Array], *said: float, cost: float = 1.0
    ) -> Trial:
        edit = Edit("mask", operation, said)
        terms = lambda s: s.by_scores(s.raw, seen=np.broadcast_to(seen(s), s.seen.shape))
        return Trial(defects.MASK, edit, terms, cost)

    every = lambda s: s.keys >= 0
    yield of("left out", every, cost=0.5)
    own = {} if window is None else {"window": lambda s: s.keys >= s.places - window}
    inside = own.get("window", every)
    yield of("causal, aligned to the first key", lambda s: (s.keys <= s.queries) & inside(s))
    yield of(
        "causal, aligned to the last key", lambda s: (s.keys <= s.places) & inside(s), cost=0.8
    )
    for d in (1, 2, 3, 4, 8, 16, 32, 64):
        for sign in (1, -1):
            end = lambda s, d=sign * d: (s.keys <= s.places + d) & inside(s)
            yield of("ends at the query's place plus", end, sign * d, cost=1.0)
    for t in (4, 8, 16, 32, 64, 128):
        tile = lambda s, t=t: (s.keys // t <= s.places // t) & inside(s)
        yield of("ends at the last key of the tile of", tile, t, cost=1.2)
    yield from _windows(of, window)
    if variant is not None and variant.mask is not None:
        causal = lambda s: s.keys < problem.n_keys[s.tokens][:, None]
        yield of("of the caller left out", causal, cost=0.7)


def _windows(of: Callable[..., Trial], window: int | None) -> Iterator[Trial]:
    if window is None:
        for size in (16, 32, 64, 128, 256, 512, 1024):
            for w in (size - 1, size):
                begins = lambda s, w=w: s.seen & (s.keys >= s.places - w)
                yield of("with a window of", begins, w, cost=1.2)
        return
    before = lambda s: s.keys <= s.places
    yield of("without its window", before, cost=0.6)
    for d in (1, -1, 2, -2, 4, -4, 8, -8, 16, -16, 32, 64):
        moved = lambda s, d=d: before(s) & (s.keys >= s.places - window - d)
        yield of("with a window of", moved, window + d)
