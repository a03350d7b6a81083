"""The tile of keys and the parts, as the rescales show them; the exponential, as the LSE does.

Isolates: P in 16 bits is rounded against the maximum so far: the bits of a weight tell where
that maximum was taken: rising scores show the tile, falling ones where a part (a split) begins. The
log-sum-exp of one key at 0 and all others at -x is a sum of exponentials without their rounding.
Calls: 0 (the readings are at hand), and 1. Read: the candidate whose bits fit; else nothing.
"""

import numpy as np

from labkernels.probing.case import Case
from labkernels.probing.experiments.p_format import TORCH
from labkernels.probing.layouts import rounded
from labkernels.probing.observed import FALLING, RISING, inputs
from labkernels.probing.report import Defect, Fact

TILES = (8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 176, 192, 256)
FITS, CLEAR = 0.06, 0.5  # share of bits that may differ; and of the next candidate's
EXACT, POLYNOMIAL = 1e-6, 2e-5  # relative errors of fp32 exponentials, and of cubics and worse
BASES = {"e": 1.0, "2": np.log(2.0)}


def tiles(c: Case, p_format: str) -> tuple[list[Fact], Defect | None]:
    """Return the tile of keys and the parts; "not read" where the bits do not tell."""
    if p_format not in TORCH or RISING not in c.raw:
        why = f"not read: P in {p_format} leaves no trace" if p_format == "fp32" else "not read"
        return [Fact(name, why, "bits of weights", 0) for name in ("tile of keys", "parts")], None
    _, _, (_, q, up), (_, _, down) = inputs(c)
    end = int(c.lens.max())
    candidates = [(t, end) for t in (*TILES, end) if t <= end]
    tile, ev = _best(c, RISING, c.scores(q, up), candidates, p_format)
    facts = [Fact("tile of keys", f"{tile[0]}" if tile else "not read", ev, 0)]
    parts = sorted({-(-end // (n * 16)) * 16 for n in range(1, 17)} | {t for t in TILES if t >= 32})
    split, ev = None, "the tile is not known"
    if tile:
        pairs = [(tile[0], x) for x in parts if x >= tile[0]]
        split, ev = _best(c, FALLING, c.scores(q, down), pairs, p_format)
    value = "not read"
    if split:
        value = f"{split[1]} keys" if split[1] < end else "one"
    return [*facts, Fact("parts", value, ev, 0)], None


def _best(c: Case, name: str, scores: np.ndarray, candidates, p_format: str):
    """Return the (tile, part) whose predicted bits fit, or None, and the evidence."""
    key, dtype = np.arange(c.s.keys), c.kernel.out_dtype or c.kernel.dtype
    w, _ = c.weights(scores)
    total = 1 / w.max(-1, keepdims=True)
    top = scores.max(-1, keepdims=True)
    at = w > 1000 * c.floor
    said = []
    for tile, part in candidates:
        start, last = key // part * part, key % part // tile * tile + tile
        inside = (key >= start[:, None]) & (key < (start + last)[:, None])
        now = np.where(inside, scores[..., None, :], -np.inf).max(-1) if scores.size < 6e4 else None
        if now is None:
            return None, "too many rows"
        with np.errstate(all="ignore"):
            p = rounded(np.nan_to_num(np.exp(scores - now)), TORCH[p_format])
            x = rounded(np.nan_to_num(p * np.exp(now - top) / total), dtype)
        said.append((float((x != c.raw[name])[at].mean()), tile, part))
    said.sort()
    ev = f"{said[0][0]:.1%} of weights' bits differ" + (
        f", next {said[1][0]:.1%}" if said[1:] else ""
    )
    clear = len(said) < 2 or said[0][0] < CLEAR * said[1][0]
    return (said[0][1:] if said[0][0] <= FITS and clear else None), ev


def exponential(c: Case) -> tuple[Fact, Defect | None]:
    """Return how exact the exponential is, as the log-sum-exp shows."""
    q, k = np.zeros_like(c.q), np.zeros((c.s.keys, c.s.dim))
    rows = np.prod(q.shape[:3])
    x = np.linspace(0.5, 3.5, rows).reshape(q.shape[:3])
    q[..., 0] = -x / c.model.scale / 4
    k[1:, 0] = 4.0
    q, k = c.rounded(q), c.k_like(k)
    answer = c.answer(q, k, c.v)
    plain = c.model.slopes is None and c.model.sinks is None and not c.model.variant.soft_cap
    if answer.lse is None or not plain or c.model.variant.window_left is not None:
        return Fact("exponential", "not read", "needs the LSE of a plain variant", 1), None
    _, want = c.weights(c.scores(q, k))
    of = {base: answer.lse * f - want for base, f in BASES.items()}
    off = min(of.values(), key=lambda e: float(np.abs(e).max()))
    most = float(np.abs(off).max())
    value = f"relative error up to {most:.2g}"
    if most < EXACT:
        value = f"exact to fp32 ({value})"
    elif most < POLYNOMIAL:
        value = f"approximate, finer than a cubic ({value})"
    elif most < 1e-3:
        value = f"approximate, as a cubic ({value})"
    return Fact("exponential", value, f"LSE of {rows} rows, one key at 0 and others below", 1), None
