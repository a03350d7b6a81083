"""Mistakes in a row's sums, made in float64: keys, weights, rescales, accumulators, merges.

Each yields (name, where(i), outputs [..., Dv]). Shapes: scores [n] in log2 units, v [n, Dv].
"""

from collections.abc import Iterator

import numpy as np

from labkernels.numerics import rounding
from labkernels.numerics.problem import LOG2_E

_SPLIT_KEYS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_STEP_KEYS = (16, 32, 64, 128)
_STEPS_MOST = 4096  # steps of a row that are followed one by one: more would take seconds


def keys(scores, v) -> Iterator:
    """One key left out, counted twice, or without its value; values of the key beside."""
    t = np.exp2(scores - scores.max())
    total, n = t.sum(), t @ v
    tv = t[:, None] * v

    def where(i):
        return f"key {i} of {len(t)}"

    with np.errstate(invalid="ignore", divide="ignore"):
        yield "key left out", where, (n - tv) / (total - t)[:, None]
    yield "key counted twice", where, (n + tv) / (total + t)[:, None]
    yield "value of a key read as 0", where, (n - tv) / total
    for step, word in ((1, "before"), (-1, "after")):
        shifted = np.roll(v, step, axis=0)
        yield f"V of the key {word}", lambda i: "", (t @ shifted / total)[None]


def weights(scores, v, head_dim: int) -> Iterator:
    """A wrong scale."""
    root = head_dim**0.5
    factors = {
        "log2(e) left out": np.log(2),
        "log2(e) applied twice": LOG2_E,
        "scale left out": root,
        "scale applied twice": 1 / root,
    }
    if not np.isfinite(scores).all():
        return
    for name, factor in factors.items():
        t = np.exp2(factor * (scores - scores.max()))
        yield f"wrong scale: {name}", lambda i: "", (t @ v / t.sum())[None]


def rescales(scores, v) -> Iterator:
    """A sum that does not follow the running maximum, or follows it one step late."""
    for step in _STEP_KEYS:
        for warps in (1, 2, 4, 8):
            if len(scores) > step * _STEPS_MOST:
                continue
            where = f"steps of {step} keys, {warps} in turn"
            for name, o in _without_rescale(scores, v, step, warps).items():
                yield name, lambda i, where=where: where, o[None]


def _without_rescale(scores, v, step: int, warps: int) -> dict[str, np.ndarray]:
    m = scores.max()
    t = np.exp2(scores - m)
    o_kept, o_late, l_kept = 0.0, 0.0, 0.0
    for warp in range(warps):
        running, before, kept, late, l = -np.inf, -np.inf, 0.0, 0.0, 0.0
        for first in range(warp * step, len(scores), warps * step):
            s = scores[first : first + step]
            top = max(running, s.max())
            p = np.exp2(s - top)
            pv = p @ v[first : first + step]
            stale = np.exp2(before - running) if running > -np.inf and before > -np.inf else 1.0
            kept, late, l = kept + pv, late * stale + pv, l + p.sum()
            before, running = running, top
        if running > -np.inf:
            weight = np.exp2(running - m)
            o_kept, o_late, l_kept = (
                o_kept + weight * kept,
                o_late + weight * late,
                l_kept + weight * l,
            )
    return {
        "o not rescaled when the maximum moves": o_kept / t.sum(),
        "o rescaled by a stale maximum": o_late / t.sum(),
        "l not rescaled when the maximum moves": t @ v / l_kept,
    }


def accumulators(scores, v, p_format: str) -> Iterator:
    """An accumulator of o in 16 bits: rounded after every step of keys."""
    for step in _STEP_KEYS:
        for warps in (1, 4):
            if len(scores) > step * _STEPS_MOST:
                continue
            where = f"steps of {step} keys, {warps} in turn"
            for fmt in ("bf16", "fp16"):
                o = _in_format(scores, v, step, warps, fmt, p_format)
                yield f"o accumulated in {fmt}", lambda i, where=where: where, o[None]


def _in_format(scores, v, step: int, warps: int, fmt: str, p_format: str) -> np.ndarray:
    m, total, o = scores.max(), np.exp2(scores - scores.max()).sum(), 0.0
    p_format = "fp32" if p_format.endswith("x2") else p_format
    for warp in range(warps):
        running, part = -np.inf, 0.0
        for first in range(warp * step, len(scores), warps * step):
            s = scores[first : first + step]
            top = max(running, s.max())
            p = rounding.round_to(np.exp2(s - top), p_format)
            part = part * np.exp2(running - top) + p @ v[first : first + step]
            part, running = rounding.round_to(part, fmt), top
        if running > -np.inf:
            o = o + np.exp2(running - m) * part
    return o / total


def merges(scores, v) -> Iterator:
    """Splits merged in the wrong base or in 16 bits, or one of them left out."""
    for n_keys in _SPLIT_KEYS:
        starts = np.arange(0, len(scores), n_keys)
        if not 2 <= len(starts) <= 512:
            continue
        m = np.maximum.reduceat(scores, starts)
        t = np.exp2(scores - np.repeat(m, np.diff([*starts, len(scores)])))
        total = np.add.reduceat(t, starts)
        o = np.add.reduceat(t[:, None] * v, starts, axis=0)
        yield from _merged(m, total, o, n_keys)


def _merged(m, total, o, n_keys: int) -> Iterator:
    lse2, w = m + np.log2(total), np.exp2(m - m.max())

    def words(i):
        return f"splits of {n_keys} keys"

    for kind, weight in (("exp for exp2", 1.0), ("exp2 of natural logs", np.log(2) ** 2)):
        wrong = np.exp2(LOG2_E * weight * (m - m.max()))
        mixed = wrong @ o / (wrong @ total)
        yield f"mixed log base at the merge: {kind}", words, mixed[None]
        wrong = np.exp2(LOG2_E * weight * (lse2 - lse2.max()))
        mixed = wrong @ (o / total[:, None]) / wrong.sum()
        yield f"mixed log base at the merge of lse: {kind}", words, mixed[None]
    for fmt in ("bf16", "fp16"):
        parts = rounding.round_to(o / total[:, None], fmt)
        merged = (w * total) @ parts / (w @ total)
        yield f"partial outputs merged in {fmt}", words, merged[None]
    rest = (w @ o - w[:, None] * o) / (w @ total - w * total)[:, None]
    yield "split left out", lambda i: f"keys {i * n_keys} to {i * n_keys + n_keys}", rest
