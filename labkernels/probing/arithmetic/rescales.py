"""The tile of keys and the parts, as the rescales show them; the exponential, as the LSE does.

Isolates: P in 16 bits is rounded against the maximum so far: the bits of a weight tell where
that maximum was taken: rising scores show the tile, falling ones where a part (a split) begins. The
log-sum-exp of one key at 0 and all others at -x is a sum of exponentials without their rounding.
Calls: 0 (the readings are at hand), and 1. Read: the candidate whose bits fit; else nothing.
"""

import numpy as np

from labkernels.numerics.rounding import round_to
from labkernels.probing.arithmetic.p_format import ROUNDED
from labkernels.probing.case import Case
from labkernels.probing.experiments.inputs import BASES
from labkernels.probing.layouts import rounded
from labkernels.probing.observed import FALLING, RISING, inputs
from labkernels.probing.report import Fact, Findings

TILES = (8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 176, 192, 256)
FITS, CLEAR = 0.06, 0.5  # share of bits that may differ; and of the next candidate's
# Relative errors of an exponential, and what is below them.
WAYS = {
    1e-6: "exact to fp32",
    2e-5: "approximate, finer than a cubic",
    1e-3: "approximate, as a cubic",
}


def tiles(c: Case, p_format: str) -> Findings:
    """Return the tile of keys and the parts; "not read" where the bits do not tell."""
    if p_format not in ROUNDED or RISING not in c.raw:
        why = f"not read: P in {p_format} leaves no trace" if p_format == "fp32" else "not read"
        return [Fact(name, why, "bits of weights", 0) for name in ("tile of keys", "parts")]
    _, _, (_, q, up), (_, _, down) = inputs(c)
    end = int(c.lens.max())
    candidates = [(t, end) for t in (*TILES, end) if t <= end]
    tile, ev = _best(c, RISING, c.scores(q, up), candidates, p_format)
    fact = Fact("tile of keys", f"{tile[0]}" if tile else "not read", ev, 0)
    if not tile:
        return [fact, Fact("parts", "not read", "the tile is not known", 0)]
    parts = sorted({-(-end // (n * 16)) * 16 for n in range(1, 17)} | {t for t in TILES if t >= 32})
    pairs = [(tile[0], x) for x in parts if x >= tile[0]]
    split, ev = _best(c, FALLING, c.scores(q, down), pairs, p_format)
    value = "not read" if not split else f"{split[1]} keys" if split[1] < end else "one"
    return [fact, Fact("parts", value, ev, 0)]


def _best(c: Case, name: str, scores: np.ndarray, candidates, p_format: str):
    """Return the (tile, part) whose predicted bits fit, or None, and the evidence."""
    if scores.size >= 6e4:
        return None, "too many rows"
    key, top = np.arange(c.s.keys), scores.max(-1, keepdims=True)
    w, _ = c.weights(scores)
    total, at, said = 1 / w.max(-1, keepdims=True), w > 1000 * c.floor, []
    for tile, part in candidates:
        start, last = key // part * part, key % part // tile * tile + tile
        inside = (key >= start[:, None]) & (key < (start + last)[:, None])
        now = np.where(inside, scores[..., None, :], -np.inf).max(-1)
        p = round_to(np.nan_to_num(np.exp(scores - now)), p_format)
        x = rounded(np.nan_to_num(p * np.exp(now - top) / total), c.kernel.out_dtype)
        said.append((float((x != c.raw[name])[at].mean()), tile, part))
    (share, *found), *others = sorted(said)
    ev, clear = f"{100 * share:.1f} % of weights' bits differ", True
    if others:
        ev, clear = f"{ev}, next {100 * others[0][0]:.1f} %", share < CLEAR * others[0][0]
    return (found if share <= FITS and clear else None), ev


def exponential(c: Case) -> Findings:
    """Return how exact the exponential is, as the log-sum-exp shows."""
    rows, one = np.prod(c.q.shape[:3]), np.eye(c.s.dim)[0]
    x = np.linspace(0.5, 3.5, rows).reshape(*c.q.shape[:3], 1)
    q = c.rounded(-x / c.model.scale / 4 * one)
    k = c.like(c.k, 4.0 * one * (np.arange(c.s.keys) > 0)[:, None])
    (_, lse), variant = c.answer(q, k, c.v), c.model.variant
    plain = c.model.slopes is None and c.model.sinks is None and not variant.soft_cap
    if lse is None or not plain or variant.window_left is not None:
        return [Fact("exponential", "not read", "needs the LSE of a plain variant", 1)]
    _, want = c.weights(c.scores(q, k))
    most = min(float(np.abs(lse * f - want).max()) for f in BASES.values())
    value = f"relative error up to {most:.2g}"
    said = next((f"{way} ({value})" for bound, way in WAYS.items() if most < bound), value)
    return [Fact("exponential", said, f"LSE of {rows} rows, one key at 0 and others below", 1)]
