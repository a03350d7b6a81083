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
from labkernels.variant import AttentionVariant

MOST_ROWS = 0.5  # a model is taken if more rows than this agree with it: a bug seldom has more
SINK_SCORES = (-3.0, -6.0, -9.0)  # of all keys: a sink of about that, plus log n, is half of all
NO_SINK = -30.0
UNEVEN = 3.0  # of log weights at q = 0: no mask, but a bias
RAMPS = ((-6.0, 6.0), (28.0, 36.0))  # natural scores, where no bend and where any cap shows


def discover(cases: list[Case], scale: float) -> tuple[Model, float]:
    """Return the model of all cases, and the factor by which scores are off the scale given."""
    for c in cases:
        c.raw[COUNTS] = c.read(c.zero, c.k)
    model = _mask(cases, Model(scale=scale, slopes=_slopes(cases)))
    factor, cap = curve(cases, model)
    model = replace(model, scale=_known_scale(scale * factor, cases[0]) or scale)
    model = replace(model, variant=replace(model.variant, soft_cap=cap))
    sinks = _sinks(_longest(cases), model)
    variant = replace(model.variant, sinks=sinks is not None)
    return replace(model, variant=variant, sinks=sinks), factor


def _longest(cases: list[Case]) -> Case:
    return max(cases, key=lambda x: x.s.keys)


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
    w, key, heads = c.raw[COUNTS], np.arange(c.s.keys), []
    for h in range(c.s.q_heads):
        found = []
        for row in w[:, h, :: max(1, c.s.queries // 4)].reshape(-1, c.s.keys):
            ok = np.isfinite(row) & (row > 200 * c.floor)
            if ok.sum() >= 4:
                slope, left = _line(key[ok], np.log(row[ok]))
                if left > 2.2 * c.tol:
                    return None
                found.append(slope)
        if not found or np.ptp(found) > 0.05 * abs(float(np.median(found))) + 1e-3:
            return None
        heads.append(np.median(found))
    heads = np.array(heads)
    reach = c.tol / max(1, c.s.keys // 2)
    if (heads < -reach).any() or not (heads > reach).all():
        return None
    # One slope for all heads is no ALiBi.
    return heads if c.s.q_heads == 1 or np.ptp(heads) > 0.05 * heads.max() else None


def _mask(cases: list[Case], model: Model) -> Model:
    """Return the model with the mask that agrees with most rows, the plainest first."""
    plain = [
        replace(model, variant=AttentionVariant(causal=causal, alibi=model.slopes is not None))
        for causal in (False, True)
    ]
    candidates = [*plain, replace(plain[1], top_left=True)]
    best = max(candidates, key=lambda x: _agree(cases, x))
    if _agree(cases, best)[0] > MOST_ROWS:
        return best
    windows = sorted({w for c in cases for w in _windows(c)})
    candidates = [
        replace(m, variant=replace(m.variant, window_left=w)) for m in candidates for w in windows
    ]
    # All cases must agree with a window: a key left out somewhere is no window.
    for m in candidates:
        if _agree(cases, m)[0] > 0.9:
            return m
    if max(_spread(c) for c in cases) > UNEVEN:
        return plain[0]  # weights that fall away say nothing of a mask
    return max(plain, key=lambda x: _agree(cases, x)[1])


def _spread(c: Case) -> float:
    """Return how much log weights of a row differ, at most, where they can be read."""
    w = c.raw[COUNTS]
    logs = np.log(np.where(w > 200 * c.floor, w, np.nan))
    return float(np.nanmax(np.nanmax(logs, -1) - np.nanmin(logs, -1), initial=0.0))


def _agree(cases: list[Case], model: Model) -> tuple[float, float]:
    """Return the smallest share, of all cases, of rows, and of keys, that fit the model."""
    shares = []
    for c in cases:
        before = c.model
        c.judge_by(model)
        want, _ = c.weights(c.scores(c.zero, c.k))
        clear = (want > 200 * c.floor) | ~c.seen
        right = ~clear | ((c.raw[COUNTS] > 30 * c.floor) == c.seen)
        shares.append((float(right.all(-1).mean()), float(right.mean())))
        c.judge_by(before)
    return min(shares)


def _windows(c: Case) -> set[int]:
    """Return how far before its own place the last query of each request sees."""
    seen = c.raw[COUNTS][:, 0, -1] > 30 * c.floor
    return {int(n - 1 - s.argmax()) for s, n in zip(seen, c.lens, strict=True) if s.any()}


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
    """Return the factor of the scale and the soft cap, from two ramps of scores."""
    c = _longest(cases)
    c.judge_by(model)
    x, y = zip(*(_ramp(c, low, high) for low, high in RAMPS), strict=True)
    slopes, left = zip(*map(_line, x, y), strict=True)
    if max(left) < 2.2 * c.tol and abs(slopes[1] / slopes[0] - 1) < 0.01:
        _bend(cases, math.inf)
        return float(np.mean(slopes)), None
    best = (np.inf, 1.0, 1.0)
    caps = np.geomspace(2, 400, 120)
    for _ in range(3):
        tried = [(f, cap) for cap in caps for f in (1.0, slopes[0])]
        best = min(best, *((_left(x, y, f, cap), f, cap) for f, cap in tried))
        step = caps[1] / caps[0]
        caps = np.geomspace(best[2] / step, best[2] * step, 40)
    if best[0] > 6 * c.tol or slopes[0] <= 0:
        return float(slopes[0]), None
    near = float(f"{best[2]:.2g}")
    cap = near if abs(best[2] / near - 1) < 0.02 else float(best[2])
    _bend(cases, cap)
    return float(best[1]), cap


def _bend(cases: list[Case], cap: float) -> None:
    for c in cases:
        c.bend = cap


def _left(x, y, factor: float, cap: float) -> float:
    """Return the largest spread, of two ramps, of log weights about a cap's."""
    pairs = zip(x, y, strict=True)
    return float(max(np.ptp(b - cap * np.tanh(factor * a / cap)) for a, b in pairs))


def _line(x, y) -> tuple[float, float]:
    """Return the slope of y over x, and the largest residual."""
    x, y = x - x.mean(), y - y.mean()
    a = float((x * y).sum() / (x * x).sum())
    return a, float(np.abs(y - a * x).max())


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
