"""Sums, counts and heads are right; K or Q as read is not: the parts of the scores."""

import math

import numpy as np

from labkernels.defects import INDEX_K, INDEX_Q, LESS_EXACT, SCORES, WEIGHTS
from labkernels.probing.arithmetic.p_format import coarse_p
from labkernels.probing.diagnosis.maps import channel_map, k_map, other_keys, q_map
from labkernels.probing.diagnosis.weights import joined
from labkernels.probing.observed import Q_READ, RANDOM, Observed
from labkernels.probing.reading import (
    BY_KEY,
    CELLS,
    DISTANCE,
    FUNCTION,
    MISSING,
    OK,
    OTHER,
    ROW,
    SCALE,
    SMALL_LOST,
    Reading,
    residual,
)
from labkernels.probing.report import Defect, defect

SHARE = 0.14  # e5m2 rounds by up to an eighth; whatever is off by more is no rounding


def of_scores(o: Observed) -> Defect | None:
    """Read which of Q, K and the score itself is altered."""
    q, k = q_map(o), k_map(o)
    if not (q.wrong or k.wrong):
        return None
    reads = [*o.k_reads, o.reads[Q_READ]]
    bad = [x for x in reads if x.kind != OK]
    kinds = {x.kind for x in bad}
    rows = np.logical_or.reduce([x.rows for x in reads])
    if not (q.moved or k.other):
        found = _curve(o, rows) or coarse_p(o.c, rows) or _rounding(o, bad, kinds, rows)
        if found is not None:
            return found
    if q.moved and not k.other:
        right = "wrong" if k.wrong else "right"
        sentence = f"rows have another row's q: {q.words}"
        return defect(INDEX_Q, sentence, f"Q read; K read {right}", q.rows)
    zero = _k_is_0(o)
    if zero is not None:
        return zero
    if k.other:
        return defect(INDEX_K, k.words, "K read", rows, keys=k.keys)
    found = _by_kind(o, bad, kinds, rows) or _channels(o)
    return found or _altered(o, bad, rows)


def _rounding(o: Observed, bad: list[Reading], kinds: set[str], rows) -> Defect | None:
    """Values that are off by a share of themselves, with either sign: a coarser format."""
    if not kinds <= {OTHER, FUNCTION, BY_KEY, ROW}:
        return None
    for x in bad:
        at = x.valid & x.off.any(-1, keepdims=True) & (x.got > 100 * x.low)
        d = residual(x.log, at)
        far = np.abs(d) > 2 * o.c.tol
        if not np.nanmax(np.abs(d) - SHARE * (np.abs(x.scores) + 0.3), initial=-1.0) <= 3 * o.c.tol:
            return None
        if far.sum() > 8 and not 0.1 < (d[far] > 0).mean() < 0.9:
            return None
    q, k = q_map(o), k_map(o)
    whose = "K" if not q.wrong else "Q" if not k.wrong else "Q, K or the scores"
    most = max(x.most for x in bad)
    sentence = f"{whose}: rounded more than the formats need, log weights off by up to {most:.3g}"
    return defect(LESS_EXACT, sentence, ", ".join(x.name for x in bad), rows)


def _curve(o: Observed, rows) -> Defect | None:
    """The scores bend otherwise than the soft cap asked for."""
    found, asked = o.c.bend, o.c.model.variant.soft_cap
    if found is None or (asked is None and found == math.inf):
        return None
    if asked is not None and abs(found / asked - 1) < 0.05:
        return None
    words = "none" if found == math.inf else f"{found:.4g}"
    sentence = f"the soft cap is {words}, and not {'none' if asked is None else f'{asked:.4g}'}"
    return defect(SCORES, sentence, "log weights along two ramps of scores", rows)


def _by_kind(o: Observed, bad: list[Reading], kinds: set[str], rows) -> Defect | None:
    """Kinds of difference that say what it is."""
    small = {x.kind for x in bad if x.most < SHARE}  # too small for their kind to be clear
    if CELLS in kinds and kinds - small <= {CELLS, ROW, MISSING, SMALL_LOST}:
        x = next(x for x in bad if x.kind == CELLS)
        sentence = f"weights have {x.words}, which move with the scores"
        return defect(joined(o, x), sentence, f"{x.name}; q = 0 right", rows, keys=x.keys)
    if kinds == {SCALE}:
        own = next((x.words for x in bad if "each row" in x.words), "")
        a = [x.value for x in bad]
        same = np.ptp(a) < 0.02 and len(bad) == 4
        words = f"some channels by {min(a):.4g} to {max(a):.4g}"
        words = own or (f"scores by {np.median(a):.5g}" if same else words)
        channels = None
        if not own and not same:
            return None
        return defect(SCORES, words, "K read and Q read times this", rows, channels=channels)
    if SMALL_LOST in kinds:
        return defect(WEIGHTS, "the smallest weights are lost, in both sums", "K read", rows)
    return None


def _channels(o: Observed) -> Defect | None:
    found = channel_map(o)
    if found is None:
        return None
    rule, channels, words = found
    r, k = o.reads[Q_READ], k_map(o)
    # A permutation of channels of Q and of K are one: K's are named where `K read` shows it. Where
    # a channel is read twice, `Q read` is clean for Q alone: K's would show sums of two channels.
    kind = INDEX_Q if rule == "row" else SCORES
    if rule == "channel":
        kind = INDEX_K if k.wrong and "twice" not in words else INDEX_Q
    if rule == "altered":
        keys = other_keys(o, channels)
        if keys is not None:
            return keys
    return defect(kind, words, "Q read", r.rows, channels=channels)


def _altered(o: Observed, bad: list[Reading], rows) -> Defect:
    q, k = q_map(o), k_map(o)
    alone = "" if q.wrong and k.wrong else " (K alone)" if k.wrong else " (Q alone)"
    candidates = [*bad, o.reads[RANDOM]]
    function = next((x for x in candidates if x.kind == FUNCTION), None)
    if function is not None:
        return defect(SCORES, f"scores are {function.words}", function.name, rows)
    x = next((x for x in bad if x.kind in (BY_KEY, DISTANCE)), bad[0])
    ev = ", ".join(f"{y.name}: {y.kind}" for y in bad)
    keys = x.off[x.rows].any(0)
    return defect(SCORES, f"K, Q or the scores are altered{alone}: {x.words}", ev, rows, keys=keys)


def _k_is_0(o: Observed) -> Defect | None:
    """Whether some keys have one score, 0, whatever channel is asked for."""
    zero = np.zeros(o.c.s.keys, bool)
    for r in o.k_reads:
        if r.kind == OK:
            return None
        with np.errstate(all="ignore"):
            x = np.where(r.valid & (r.got > 0), np.log(r.got), np.nan)
            const = np.nanmedian(np.where(r.valid, x - r.scores, np.nan), -1, keepdims=True)
            flat = np.abs(x - const) <= 3 * o.c.tol
            off = r.valid & (np.abs(x - const - r.scores) > 3 * o.c.tol)
        odd, off = off[r.rows].any(0), off[r.rows]
        if not np.isfinite(const[r.rows]).all() or not (
            off.any() and (flat[r.rows] & off).sum() >= 0.9 * off.sum()
        ):
            return None
        zero |= odd
    rows = np.logical_or.reduce([r.rows for r in o.k_reads])
    return defect(SCORES, "K of these keys is read as 0", "K read: scores 0", rows, keys=zero)
