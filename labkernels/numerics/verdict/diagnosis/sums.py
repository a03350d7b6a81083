"""Mistakes in a row's sums, made in float64: keys, weights, merges.

Each function yields (name, where(i), outputs [..., Dv]). Shapes: scores [n] in log2 units, v
[n, Dv].
"""

import numpy as np

from labkernels.numerics import rounding
from labkernels.numerics.arrays import Array
from labkernels.numerics.verdict.diagnosis import Mistakes
from labkernels.numerics.verdict.diagnosis.softmax import SPLIT_KEYS
from labkernels.units import LOG2_E


def keys(scores: Array, v: Array) -> Mistakes:
    """A key is left out, counted twice, or its value is 0; or values are those of the next key."""
    t = np.exp2(scores - scores.max())
    total, n = t.sum(), t @ v
    tv = t[:, None] * v

    def where(i: int) -> str:
        return f"key {i} of {len(t)}"

    with np.errstate(invalid="ignore", divide="ignore"):
        yield "key left out", where, (n - tv) / (total - t)[:, None]
    yield "key counted twice", where, (n + tv) / (total + t)[:, None]
    yield "value of a key read as 0", where, (n - tv) / total
    for split in (keys for keys in SPLIT_KEYS if keys < len(t)):
        last = [*range(split - 1, len(t) - 1, split), len(t) - 1]
        without = ((n - tv[last].sum(0)) / total)[None]
        where_split = f"splits of {split} keys"
        yield "last value of every split read as 0", lambda i, w=where_split: w, without
    for step, word in ((1, "before"), (-1, "after")):
        shifted = np.roll(v, step, axis=0)
        yield f"V of the key {word}", lambda i: "", (t @ shifted / total)[None]


def weights(scores: Array, v: Array, head_dim: int) -> Mistakes:
    """The scale is wrong."""
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


def merges(scores: Array, v: Array) -> Mistakes:
    """Splits are merged in the wrong base or in 16 bits, or one of them is left out."""
    for n_keys in SPLIT_KEYS:
        starts = np.arange(0, len(scores), n_keys)
        if not 2 <= len(starts) <= 512:
            continue
        m = np.maximum.reduceat(scores, starts)
        t = np.exp2(scores - np.repeat(m, np.diff([*starts, len(scores)])))
        total = np.add.reduceat(t, starts)
        o = np.add.reduceat(t[:, None] * v, starts, axis=0)
        yield from _merged(m, total, o, n_keys)


def _merged(m: Array, total: Array, o: Array, n_keys: int) -> Mistakes:
    lse2, w = m + np.log2(total), np.exp2(m - m.max())

    def words(i: Array) -> str:
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
