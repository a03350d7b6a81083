"""The parts of the scores, K and Q as read; and weights that are wrong though all parts are right.

Sums, counts and heads are right where these are asked.
"""

import math

import numpy as np

from labkernels.defects import INDEX_K, INDEX_Q, LESS_EXACT, MERGE, SCORES, WEIGHTS
from labkernels.probing.arithmetic.p_format import coarse_p
from labkernels.probing.diagnosis.maps import channel_map, k_map, logs, q_map
from labkernels.probing.observed import COUNTS, FALLING, Q_READ, RANDOM, RISING, Observed
from labkernels.probing.reading import Kind, Reading, residual
from labkernels.probing.report import Defect, defect

SHARE = 0.14  # e5m2 rounds by up to an eighth; whatever is off by more is no rounding


def of_scores(o: Observed) -> Defect | None:
    """Read which of Q, K and the score itself is altered."""
    q, k = q_map(o), k_map(o)
    if not (q.wrong or k.wrong):
        return None
    bad = [x for x in (*o.k_reads, o.reads[Q_READ]) if x.kind != Kind.OK]
    kinds, rows, found = {x.kind for x in bad}, q.rows | k.rows, None
    if not (q.moved or k.moved):
        found = _curve(o, rows) or coarse_p(o.c, rows) or _rounding(o, bad, kinds, rows)
    elif not k.moved:
        ev = f"Q read; K read {'wrong' if k.wrong else 'right'}"
        found = defect(INDEX_Q, f"rows have another row's q: {q.words}", ev, q.rows)
    found = found or _k_is_0(o)
    if k.moved:
        return found or defect(INDEX_K, k.words, "K read", rows, keys=k.keys)
    return found or _by_kind(o, bad, kinds, rows) or _channels(o) or _altered(o, bad, rows)


def _rounding(o: Observed, bad: list[Reading], kinds: set[str], rows) -> Defect | None:
    """Values that are off by a share of themselves, with either sign: a coarser format."""
    if not kinds <= {Kind.OTHER, Kind.FUNCTION, Kind.BY_KEY, Kind.ROW}:
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
    as_asked = found == math.inf if asked is None else found and abs(found / asked - 1) < 0.05
    if found is None or as_asked:
        return None
    is_, not_ = ("none" if x in (None, math.inf) else f"{x:.4g}" for x in (found, asked))
    sentence = f"the soft cap is {is_}, and not {not_}"
    return defect(SCORES, sentence, "log weights along two ramps of scores", rows)


def _by_kind(o: Observed, bad: list[Reading], kinds: set[str], rows) -> Defect | None:
    """Kinds of difference that say what it is."""
    small = {x.kind for x in bad if x.most < SHARE}  # too small for their kind to be clear
    beside = {Kind.CELLS, Kind.ROW, Kind.MISSING, Kind.SMALL_LOST}
    if Kind.CELLS in kinds and kinds - small <= beside:
        x = next(x for x in bad if x.kind == Kind.CELLS)
        sentence = f"weights have {x.words}, which move with the scores"
        return defect(joined(o, x), sentence, f"{x.name}; q = 0 right", rows, keys=x.keys)
    if kinds == {Kind.SCALE}:
        words, a = [x.words for x in bad if "each row" in x.words], [x.value for x in bad]
        if not words and (np.ptp(a) >= 0.02 or len(bad) < 4):
            return None
        words = words[0] if words else f"scores by {np.median(a):.5g}"
        return defect(SCORES, words, "K read and Q read times this", rows)
    if Kind.SMALL_LOST in kinds:
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
    kind = SCORES
    if rule == "channel":
        kind = INDEX_K if k.wrong and "twice" not in words else INDEX_Q
    return defect(kind, words, "Q read", r.rows, channels=channels)


def _altered(o: Observed, bad: list[Reading], rows) -> Defect:
    """The scores are wrong in no way that is known by name: what is nearest, and where."""
    q, k = q_map(o), k_map(o)
    alone = "" if q.wrong and k.wrong else " (K alone)" if k.wrong else " (Q alone)"
    for x in (*bad, o.reads[RANDOM]):
        if x.kind == Kind.FUNCTION:
            return defect(SCORES, f"scores are {x.words}", x.name, rows)
    x = next((x for x in bad if x.kind in (Kind.BY_KEY, Kind.DISTANCE)), bad[0])
    ev = ", ".join(f"{y.name}: {y.kind}" for y in bad)
    sentence = f"K, Q or the scores are altered{alone}: {x.words}"
    return defect(SCORES, sentence, ev, rows, keys=x.keys)


def _k_is_0(o: Observed) -> Defect | None:
    """Whether some keys have one score, 0, whatever channel is asked for."""
    zero = np.zeros(o.c.s.keys, bool)
    for r in o.k_reads:
        x = logs(r)
        const = np.nanmedian(x - r.scores, -1, keepdims=True)
        flat = (np.abs(x - const) <= 3 * o.c.tol)[r.rows]
        off = (np.abs(x - const - r.scores) > 3 * o.c.tol)[r.rows]
        known = np.isfinite(const[r.rows]).all() and off.any()
        if not known or (flat & off).sum() < 0.9 * off.sum():
            return None
        zero |= off.any(0)
    sentence, rows = "K of these keys is read as 0", k_map(o).rows
    return defect(SCORES, sentence, "K read: scores 0", rows, keys=zero)


def factors(o: Observed, rel, rows, ev) -> Defect:
    """Weights by factors although q = 0: do the factors change with the scores?"""
    u, r, c = o.reads[COUNTS], o.reads[RANDOM], o.c
    keys = (np.abs(rel - 1) > 3 * c.tol)[rows].any(0)
    both = u.valid & r.valid & (u.got > 0) & (r.got > 100 * r.low)
    change = np.abs(residual(u.log, both) - residual(r.log, both))
    moves = np.nanmax(np.where(both, change, 0)[rows]) > 5 * c.tol
    if moves or (u.kind == Kind.CELLS and "split" in u.words):
        kind = MERGE if u.kind == Kind.CELLS else WEIGHTS
        sentence = f"parts of the keys are joined or rescaled with wrong weights: {u.words}"
        return defect(kind, sentence, f"{ev}; other factors with scores", rows, keys=keys)
    f = f"{np.nanmin(rel[rows]):.3g} to {np.nanmax(rel[rows]):.3g}"
    sentence = f"weights of keys by a factor or a bias, even with q = 0: {f}"
    return defect(SCORES, sentence, ev, rows, keys=keys)


def joined(o: Observed, r: Reading) -> str:
    """Return the class of factors that move with scores: a merge's, or a rescale's.

    A rescale is at work where maxima rise along the keys, or where they fall if a kernel walks from
    the end; a merge whichever way they go.
    """
    both = all(o.reads[x].kind != Kind.OK for x in (RISING, FALLING))
    return MERGE if both and r.kind == Kind.CELLS else WEIGHTS


def of_weights(o: Observed) -> Defect | None:
    """Read the weights with random, rising and falling scores; no part is wrong."""
    bad = [o.reads[x] for x in (RANDOM, RISING, FALLING) if o.reads[x].kind != Kind.OK]
    if not bad:
        return None
    r = next((x for x in bad if x.kind == Kind.CELLS), bad[0])
    ev = f"{', '.join(x.name for x in bad)} wrong; K read, Q read and q = 0 right"
    few = r.kind in (Kind.ROW, Kind.OTHER, Kind.SMALL_LOST)
    if r.kind in (Kind.SCALE, Kind.DISTANCE, Kind.FUNCTION):
        kind, sentence = SCORES, f"with {r.name} scores: {r.words}"
    elif few and max(x.most for x in bad) < 6 * o.c.tol:
        kind, sentence = LESS_EXACT, "sums or weights are rounded more than the formats need"
    else:
        sentence = f"scores and counts are right one by one, yet with {r.name} scores: {r.words}"
        return defect(joined(o, r), sentence, ev, r.rows, keys=r.keys)
    return coarse_p(o.c, r.rows) or defect(kind, sentence, ev, r.rows)
