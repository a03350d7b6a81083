"""The parts of the scores, K and Q as read; and weights that are wrong though all parts are right.

Sums, counts and heads are right where these are asked.
"""

import math

import numpy as np

from labkernels.defects import INDEX_K, INDEX_Q, LESS_EXACT, MERGE, SCORES, WEIGHTS
from labkernels.probing.arithmetic.p_format import coarse_p
from labkernels.probing.diagnosis.maps import channel_map, k_map, logs, other_keys, q_map
from labkernels.probing.observed import FALLING, Q_READ, RANDOM, RISING, Observed
from labkernels.probing.reading import Kind, Reading, residual
from labkernels.probing.report import Defect, defect

SHARE = 0.14  # e5m2 rounds by up to an eighth; whatever is off by more is no rounding


def of_scores(o: Observed) -> Defect | None:
    """Read which of Q, K and the score itself is altered."""
    q, k = q_map(o), k_map(o)
    if not (q.wrong or k.wrong):
        return None
    reads = [*o.k_reads, o.reads[Q_READ]]
    bad = [x for x in reads if x.kind != Kind.OK]
    kinds = {x.kind for x in bad}
    rows = np.logical_or.reduce([x.rows for x in reads])
    found = None
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
    if Kind.CELLS in kinds and kinds - small <= {
        Kind.CELLS,
        Kind.ROW,
        Kind.MISSING,
        Kind.SMALL_LOST,
    }:
        x = next(x for x in bad if x.kind == Kind.CELLS)
        sentence = f"weights have {x.words}, which move with the scores"
        return defect(joined(o, x), sentence, f"{x.name}; q = 0 right", rows, keys=x.keys)
    if kinds == {Kind.SCALE}:
        own = next((x.words for x in bad if "each row" in x.words), "")
        a = [x.value for x in bad]
        if not own and not (np.ptp(a) < 0.02 and len(bad) == 4):
            return None
        words = own or f"scores by {np.median(a):.5g}"
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
    function = next((x for x in candidates if x.kind == Kind.FUNCTION), None)
    if function is not None:
        return defect(SCORES, f"scores are {function.words}", function.name, rows)
    x = next((x for x in bad if x.kind in (Kind.BY_KEY, Kind.DISTANCE)), bad[0])
    ev = ", ".join(f"{y.name}: {y.kind}" for y in bad)
    keys = x.off[x.rows].any(0)
    return defect(SCORES, f"K, Q or the scores are altered{alone}: {x.words}", ev, rows, keys=keys)


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
    rows = np.logical_or.reduce([r.rows for r in o.k_reads])
    return defect(SCORES, "K of these keys is read as 0", "K read: scores 0", rows, keys=zero)


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
    if r.kind in (Kind.SCALE, Kind.DISTANCE, Kind.FUNCTION):
        sentence = f"with {r.name} scores: {r.words}"
        return coarse_p(o.c, r.rows) or defect(SCORES, sentence, ev, r.rows)
    if r.kind in (Kind.ROW, Kind.OTHER, Kind.SMALL_LOST) and max(x.most for x in bad) < 6 * o.c.tol:
        sentence = "sums or weights are rounded more than the formats need"
        return coarse_p(o.c, r.rows) or defect(LESS_EXACT, sentence, ev, r.rows)
    sentence = f"scores and counts are right one by one, yet with {r.name} scores: {r.words}"
    return defect(joined(o, r), sentence, ev, r.rows, keys=r.keys)
