"""Which attention this is, without being told: mask, window, slopes, sinks, scale and soft cap.

Isolates: with q = 0 and one-hot V a weight says whether a key is seen, a slope along keys is a
bias by distance, and what is missing to a sum of 1 is a sink. With q = one channel and K a ramp,
log weights are the score as a function of q k: its slope is the scale, its bend the cap.
Calls: the reading with q = 0 of each case, and 2 ramps. Read: the plain model that most rows agree
with; what no model explains is left to the diagnosis.
"""

import math
from dataclasses import replace

import numpy as np

from labkernels.kernels.caches.latent import LATENT_DIM, ROPE_DIM, LatentKV
from labkernels.probing.case import Case, Model
from labkernels.probing.observed import COUNTS, one_score
from labkernels.probing.reading import slope
from labkernels.variant import AttentionVariant

MOST_ROWS = 0.5  # a model is taken if more rows than this agree with it: a bug seldom has more
SINK_SCORES = (-3.0, -6.0, -9.0)  # of all keys: a sink of about that, plus log n, is half of all
NO_SINK = -30.0
UNEVEN = 3.0  # of log weights at q = 0: no mask, but a bias
RAMPS = ((-6.0, 6.0), (28.0, 36.0))  # natural scores, where no bend and where any cap shows


def discover(cases: list[Case], scale: float) -> tuple[Model, float, float | None]:
    """Return the model of all cases, and `curve`'s factor and soft cap."""
    for c in cases:
        c.raw[COUNTS] = c.read(c.zero, c.k)
    model = _mask(cases, Model(scale=scale, slopes=_slopes(cases)))
    factor, bend = curve(cases, model)
    cap = None if bend == math.inf else bend
    scale = _known_scale(scale * factor, cases[0]) or scale
    model = replace(model, scale=scale, variant=replace(model.variant, soft_cap=cap))
    sinks = _sinks(max(cases, key=lambda x: x.s.keys), model)
    variant = replace(model.variant, sinks=sinks is not None)
    return replace(model, variant=variant, sinks=sinks), factor, bend


def _known_scale(found: float, c: Case) -> float | None:
    """Return the scale that people use nearest to the one found, if it is that; else None."""
    # Other scales than these must be told: a scale left out or applied twice is no variant.
    of_mla = (LatentKV.default_scale, (LATENT_DIM + ROPE_DIM) ** -0.5)
    for known in (c.s.dim**-0.5, *(of_mla if c.kernel.layout == "mla" else ())):
        if abs(found / known - 1) < 0.004:
            return known
    return None


def _slopes(cases: list[Case]) -> np.ndarray | None:
    """Return each head's slope by distance, if its log weights fall evenly towards old keys."""
    c = max(cases, key=lambda x: x.s.queries * x.s.keys)
    w = c.raw[COUNTS][:, :, :: max(1, c.s.queries // 4)]
    read = w > 200 * c.floor
    read &= read.sum(-1, keepdims=True) >= 4
    falls, left = slope(np.broadcast_to(np.arange(c.s.keys), w.shape), np.log(w), read)
    falls = np.where(read.any(-1, keepdims=True), falls, np.nan)
    heads, reach = np.nanmedian(falls, (0, 2, 3)), c.tol / max(1, c.s.keys // 2)
    apart = np.nanmax(falls, (0, 2, 3)) - np.nanmin(falls, (0, 2, 3))
    if left > 2.2 * c.tol or not (apart <= 0.05 * np.abs(heads) + 1e-3).all():
        return None
    # One slope for all heads is no ALiBi.
    differ = c.s.q_heads == 1 or np.ptp(heads) > 0.05 * heads.max()
    return heads if (heads > reach).all() and differ else None


def _mask(cases: list[Case], model: Model) -> Model:
    """Return the model with the mask that agrees with most rows, the plainest first."""
    kinds = [AttentionVariant(causal=x, alibi=model.slopes is not None) for x in (False, True)]
    plain = [replace(model, variant=x) for x in kinds]
    candidates = [*plain, replace(plain[1], top_left=True)]
    best = max(candidates, key=lambda x: _agree(cases, x))
    if _agree(cases, best)[0] > MOST_ROWS:
        return best
    last = [zip(c.raw[COUNTS][:, 0, -1] > 30 * c.floor, c.lens, strict=True) for c in cases]
    windows = {int(n - 1 - x.argmax()) for of in last for x, n in of if x.any()}
    # All cases must agree with a window: a key left out somewhere is no window.
    for m in candidates:
        for left in sorted(windows):
            with_window = replace(m, variant=replace(m.variant, window_left=left))
            if _agree(cases, with_window)[0] > 0.9:
                return with_window
    for c in cases:
        logs = np.log(np.where(c.raw[COUNTS] > 200 * c.floor, c.raw[COUNTS], np.nan))
        if np.nanmax(np.nanmax(logs, -1) - np.nanmin(logs, -1), initial=0.0) > UNEVEN:
            return plain[0]  # weights that fall away say nothing of a mask
    return max(plain, key=lambda x: _agree(cases, x)[1])


def _agree(cases: list[Case], model: Model) -> tuple[float, float]:
    """Judge by a model: return the smallest share, of all cases, of rows, and of keys, that fit."""
    shares = []
    for c in cases:
        c.judge_by(model)
        want, _ = c.weights(c.scores(c.zero, c.k))
        clear = (want > 200 * c.floor) | ~c.seen
        right = ~clear | ((c.raw[COUNTS] > 30 * c.floor) == c.seen)
        shares.append((float(right.all(-1).mean()), float(right.mean())))
    return min(shares)


def _sinks(c: Case, model: Model) -> np.ndarray | None:
    """Return each head's sink: what is missing to sums of 1, at scores where sinks weigh much."""
    c.judge_by(model)
    best, gap = np.full(c.s.q_heads, -np.inf), np.full(c.s.q_heads, 0.45)
    for score in SINK_SCORES:
        q, k = one_score(c, score / (c.s.dim // 2 * model.scale))
        total = np.exp(c.scores(q, k)).sum(-1)
        f = (c.call(q, k, c.like(c.v, c.row)) / c.row).mean(-1)
        sinks = np.log((1 / f - 1) * total)
        for h in range(c.s.q_heads):
            ok = c.seen_any[:, h] & np.isfinite(sinks[:, h])
            x, w = sinks[:, h][ok], f[:, h][c.seen_any[:, h]]
            middle = abs(float(np.median(w)) - 0.5) if len(x) else 1.0
            if middle < gap[h] and np.ptp(x) < 0.2:
                best[h], gap[h] = np.median(x), middle
    found = np.isfinite(best)
    # One number in all heads is padding or a start of the sum, and no sink.
    if not found.any() or np.ptp(best[found]) < 0.1:
        return None
    return np.where(found, best, NO_SINK)


def curve(cases: list[Case], model: Model) -> tuple[float, float | None]:
    """Return the factor of the scale and the soft cap, from two ramps of scores.

    The cap is inf if scores do not bend, and None if they bend otherwise than by a cap.
    """
    c = max(cases, key=lambda x: x.s.keys)
    c.judge_by(model)
    ramps = [_ramp(c, *ends) for ends in RAMPS]
    (flat, left), (steep, more) = (slope(x, y, True) for x, y in ramps)
    flat, steep = flat.item(), steep.item()
    if max(left, more) < 2.2 * c.tol and abs(steep / flat - 1) < 0.01:
        return float(np.mean([flat, steep])), math.inf

    def off(f: float, cap: float) -> float:
        return max(float(np.ptp(y - cap * np.tanh(f * x / cap))) for x, y in ramps)

    best, caps = (np.inf, 1.0, 1.0), np.geomspace(2, 400, 120)
    for _ in range(3):
        best = min(best, *((off(f, cap), f, cap) for cap in caps for f in (1.0, flat)))
        step = caps[1] / caps[0]
        caps = np.geomspace(best[2] / step, best[2] * step, 40)
    left, factor, cap = map(float, best)
    if left > 6 * c.tol or flat <= 0:
        return flat, None
    near = float(f"{cap:.2g}")
    return factor, near if abs(cap / near - 1) < 0.02 else cap


def _ramp(c: Case, low: float, high: float):
    """Return raw natural scores, as without a cap, and log weights of one row."""
    a, row = 4.0, np.unravel_index(c.seen.sum(-1).argmax(), c.seen.shape[:3])
    seen, one = c.seen[row], np.eye(c.s.dim)[0]
    ramp = np.zeros((c.s.keys, c.s.dim))
    ramp[seen, 0] = np.linspace(low, high, seen.sum()) / (a * c.model.scale)
    q, k = c.like(c.q, a * one), c.like(c.k, ramp)
    w = c.read(q, k)[row]
    raw = (q @ c.of_heads(k).swapaxes(-1, -2) * c.model.scale)[row]
    y = np.log(np.where(w > 100 * c.floor, w, np.nan)) + np.broadcast_to(c.bias, c.seen.shape)[row]
    ok = np.isfinite(y) & seen
    return (raw[ok], y[ok]) if ok.sum() >= 8 else (np.arange(8.0), np.arange(8.0))
