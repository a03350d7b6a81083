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
_TILES = (4, 8, 16, 32, 64, 128)


def numbers(block: Block) -> Iterator[Trial]:
    """Yield changes of the scores by one number: of the scale, a cap, slopes."""
    problem, variant = block.problem, block.problem.variant or VariantTensors()
    has_cap, has_slopes = bool(variant.soft_cap), variant.alibi is not None

    def of(operation: str, f: Callable[..., Array], grid: Array, operand: str = "scores") -> Trial:
        scores = lambda s, x: s.by_scores(f(s, x))
        return Trial(defects.SCORES, Edit(operand, operation), scores, 1.0, grid=grid)

    yield of("times", lambda s, x: s.shaped(x * s.products), SIGNED, "scale")
    if not has_cap:
        caps = np.exp2(np.linspace(-2, 8, 41))
        yield of("capped at", lambda s, x: capped(s.raw, x * LOG2_E), caps)
    yield of("clamped at", lambda s, x: np.clip(s.raw, -x * LOG2_E, x * LOG2_E), 10 * POWERS)
    if has_cap:
        cap = float(variant.soft_cap or 0) * LOG2_E
        biased = lambda s, y: y + s.raw - capped(s.products, cap)
        plain = Edit("soft cap", "left out")
        left_out = lambda s: s.by_scores(biased(s, s.products))
        yield Trial(defects.SCORES, plain, left_out, 0.5)
        yield of("times", lambda s, x: biased(s, capped(s.products, cap * x)), POWERS, "soft cap")
        inside = lambda s, x: biased(s, capped(x * s.products, cap))
        yield of("inside the cap times", inside, POWERS)
    distance = lambda s: (s.keys - s.places) * LOG2_E
    if not has_slopes:
        slopes = np.concatenate([-POWERS[::-1], POWERS]) / 64
        yield of("plus key distance times", lambda s, x: s.raw + x * distance(s), slopes)
        if problem.q.shape[1] > 1:
            yield _alibi("asked for by nobody", lambda s: _power_of_two(s.head, problem.q.shape[1]))
        return
    given = np.asarray(variant.alibi, np.float64)
    extra = lambda s, x: s.raw + (x - 1) * given[s.head] * distance(s)
    yield of("times", extra, SIGNED, "slopes")
    others = {
        "left out": lambda h: 0.0,
        "of the KV head's number": lambda h: given[h // problem.group],
        "of head h + 1": lambda h: given[(h + 1) % len(given)],
        "of head h - 1": lambda h: given[h - 1],
        "of head h % Hkv": lambda h: given[h % problem.kv_heads],
        "of twice as many heads": lambda h: math.sqrt(abs(given[h])) * np.sign(given[h]),
    }
    for words, f in others.items():
        yield _alibi(words, lambda s, f=f: f(s.head) - given[s.head])
    zero = lambda s: s.by_scores(s.raw + given[s.head] * LOG2_E * s.places)
    yield Trial(defects.SCORES, Edit("slopes", "by the key's number"), zero, 0.9)


def capped(products: Array, cap: float) -> np.ndarray:
    """Return capped scores. Units: log2 units."""
    return cap * np.tanh(products / cap)


def _alibi(words: str, slope: Callable[[Block], float]) -> Trial:
    def of(s: Block):
        return s.by_scores(s.raw + slope(s) * LOG2_E * (s.keys - s.places))

    return Trial(defects.SCORES, Edit("slopes", words), of, 0.8)


def _power_of_two(head: int, heads: int) -> float:
    return float(2.0 ** (-8.0 * (head + 1) / heads))


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
    for t in _TILES:
        rules: dict[str, Callable[[Block, int], Array]] = {
            "ends at the last key of the tile of": lambda s, t: s.keys // t <= s.places // t,
            "ends as for the first query of": lambda s, t: s.keys <= s.places - s.queries % t,
            "causal inside tiles of": lambda s, t: s.seen & (s.keys // t == s.places // t),
        }
        for words, rule in rules.items():
            yield of(words, lambda s, t=t, f=rule: f(s, t) & inside(s), t, cost=1.2)
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
    for size, words in ((window // 2, "half"), (2 * window, "twice")):
        other = lambda s, w=size: before(s) & (s.keys >= s.places - w)
        yield of(f"with a window {words} as long,", other, size)
    for t in _TILES:
        starts: dict[str, Callable[[Block, int], Array]] = {
            "with a window that begins with its tile of": lambda s, t: (
                s.keys // t >= (s.places - window) // t
            ),
            "with a window of the first row of": lambda s, t: (
                s.keys >= s.places - s.queries % t - window
            ),
            "with a window, and the first keys,": lambda s, t: (
                (s.keys >= s.places - window) | (s.keys < t)
            ),
        }
        for words, rule in starts.items():
            yield of(words, lambda s, t=t, f=rule: before(s) & f(s, t), t, cost=1.2)
