"""V has one row alone, and yet the output is another: channels, stores, factors, sums."""

import math

import numpy as np

from labkernels.defects import BATCH, INDEX_OUT, INDEX_V, LESS_EXACT, MASK, STORE, VALUES, WEIGHTS
from labkernels.probing.arithmetic.p_format import coarse_p
from labkernels.probing.diagnosis.maps import of_moved_v
from labkernels.probing.diagnosis.scores import joined
from labkernels.probing.observed import COUNTS, MIXED, ONE_SCORE, SAME, Observed
from labkernels.probing.reading import Kind
from labkernels.probing.report import Defect, defect

COARSE = 0.05  # sums in 16 bits over a few hundred keys are off by less
AS_0 = "V of these keys is read as 0: their weights count in the denominator alone"


def of_sums(o: Observed) -> Defect | None:
    """Read the three calls with the same V everywhere."""
    ratio, wrong, out = o.same[SAME]
    if not wrong.any():
        return _with_scores(o)
    c, rows, channels, ev = o.c, wrong.any(-1), wrong.any((0, 1, 2)), "same V, q = 0"
    if not np.isfinite(out[rows]).all():
        bad = (~np.isfinite(out)).any((0, 1, 2))
        return defect(STORE, "NaN or infinity in the output", ev, rows, channels=bad)
    if (out[wrong] == 0).all():
        if wrong[rows].all():
            return defect(STORE, "rows never written, or written as 0", f"{ev}: out = 0", rows)
        return defect(STORE, "channels of the output or of V are 0", ev, rows, channels=channels)
    moved = _channel_map(o, wrong, rows)
    if moved is not None:
        return moved
    f, found = ratio[rows], np.abs(out[wrong])
    wanted = np.broadcast_to(c.row, out.shape)[wrong]
    one_magnitude = np.ptp(found) <= c.u * found.max() and len(found) > 8
    if one_magnitude and np.ptp(np.abs(wanted)) > 0.05 and (np.abs(wanted) > found).all():
        sentence = f"outputs are clipped: their magnitudes end at {found.max():.4g}"
        return defect(STORE, sentence, ev, rows, channels=None if channels.all() else channels)
    # One value in all keys: a rounding in each step goes the same way, other channels another way.
    most, uneven = np.abs(f - 1).max(), (np.ptp(f, -1) > 3 * c.u).mean() > 0.5
    small = most < COARSE and abs(np.median(f) - 1) <= c.tol and wrong.mean() < 0.9
    if small and uneven and o.reads[COUNTS].kind in (Kind.OK, Kind.ROW, Kind.OTHER):
        sentence = f"sums over keys are rounded more than needed: off by {most:.3g}"
        return defect(LESS_EXACT, sentence, f"{ev}: other factors in each channel", rows)
    if (np.ptp(f, -1) <= 3 * c.tol * np.abs(f).max(-1)).all():
        return _row_factor(o, ratio.mean(-1), rows)
    by_channel = f.mean(0)
    if np.abs(f - by_channel).max() <= 3 * c.tol:
        odd = np.abs(by_channel - 1) > c.tol
        words = f"{by_channel[odd].min():.4g} to {by_channel[odd].max():.4g}"
        sentence = f"channels of V or of the output by a factor, or in another format: {words}"
        return defect(VALUES, sentence, ev, rows, channels=odd)
    sentence = "the output is not V's row: channels mixed, rows of several added, or a wrong store"
    return defect(STORE, sentence, f"{ev}: ratios {f.min():.3g} to {f.max():.3g}", rows)


def _channel_map(o: Observed, wrong, rows) -> Defect | None:
    """Find for each wrong channel the one whose value it has."""
    c, best, channels = o.c, {}, wrong.any((0, 1, 2))
    b, h, m = np.nonzero(rows & c.seen_any)
    if not len(b):
        return None
    # V constant for each head gives every channel a code of one number for each head.
    seen, codes = o.id_out[b, h, m], o.ids[b, h // c.group]
    for i in np.flatnonzero(channels):
        at = wrong[b, h, m, i]
        gap = np.abs(seen[at, i][:, None] - codes[at]) / np.abs(codes[at])
        near = (gap <= 2 * c.tol).all(0)
        near[i] = False
        if not near.any() or not at.any():
            return None
        best[i] = int(np.flatnonzero(near)[0])
    shift = {(j - i) % c.s.dim_v for i, j in best.items()}
    listed = "as " + ", ".join(f"{i}<-{j}" for i, j in list(best.items())[:4])
    how = f"shifted by {shift.pop()}" if len(shift) == 1 else listed
    # Reading V and storing the output look alike in channels: only the permutation is read off.
    kind = INDEX_OUT if sorted(best.values()) == sorted(best) else INDEX_V
    sentence = f"channels of V or of the output are others: {how}"
    return defect(kind, sentence, "same V, q = 0", rows, channels=channels)


def _row_factor(o: Observed, f, rows) -> Defect | None:
    """All channels of a row by one factor with q = 0: keys lost in o, more in l, or a factor."""
    c, u = o.c, o.reads[COUNTS]
    if u.kind == Kind.MISSING:
        moved = of_moved_v(o)
        if moved is not None:
            return moved
        here = u.got[u.rows].sum(-1) / np.maximum(u.want[u.rows].sum(-1), 1e-30)
        ev = f"q = 0: weights sum to {here.min():.4g}"
        return defect(VALUES, AS_0, ev, rows, keys=u.keys_gone)
    if u.kind == Kind.LEAK:
        return defect(MASK, u.words, f"q = 0: {u.words}", rows, keys=u.keys)
    if u.kind in (Kind.CELLS, Kind.BY_KEY, Kind.OTHER):
        sentence = f"V of some keys by a factor, counted twice or from elsewhere: {u.words}"
        return defect(VALUES, sentence, "q = 0, same V", rows, keys=u.keys)
    one, mixed = (o.same[x][0].mean(-1) for x in (ONE_SCORE, MIXED))
    steady = np.abs(f[rows] - one[rows]).max() <= 2 * c.tol
    mixed_up = rows & o.map_wrong
    away = np.abs(np.where(o.own > 0, 0, o.share)[mixed_up])
    if steady and away.max(initial=0) > 0.05:
        of_request = away.sum(-1).argmax(-1) != np.nonzero(mixed_up)[0]
        sentence = "another row's output is added: V of another request or KV head is in it"
        ev = f"head map: {away.sum((-1, -2)).max():.3g} of it"
        return defect(BATCH if of_request.all() else STORE, sentence, ev, rows)
    if steady and np.abs(mixed[rows] / f[rows] - 1).max() > 3 * c.tol:
        sentence = "some keys count otherwise in the denominator alone"
        sums = f"{mixed[rows].min():.4g} to {mixed[rows].max():.4g}"
        ev = f"same V: sums {np.median(f[rows]):.4g} with equal scores, {sums} with others"
        return defect(WEIGHTS, sentence, ev, rows)
    if not steady or np.ptp(f[rows]) > 3 * c.tol:
        return _denominator(o, f, one, rows)
    sentence = f"V, the output or 1 / l by a factor of {np.median(f[rows]):.5g} in every call"
    return defect(STORE, sentence, "same V, with all scores", rows)


def _denominator(o: Observed, f, one, rows) -> Defect:
    """Say which further term the denominator has, by how it changes with the score."""
    n = o.c.seen.sum(-1)
    e0, e1 = (n / f - n)[rows], (n / one - n)[rows] * math.exp(o.flat_score)
    what = f"further terms of about {np.median(e0):.4g} keys"
    whole = (np.abs(e0 - np.round(e0)) <= 0.1 + o.c.u * n[rows]).mean() > 0.9
    if whole and o.c.u * n.max() < 0.3 and np.ptp(np.round(e0)) >= 1 > -e0.min():
        sentence = f"{np.round(e0.min()):.0f} to {np.round(e0.max()):.0f} hidden keys count"
        sentence += " in the denominator, another number in other rows"
        ev = f"same V, q = 0: whole numbers of further terms, {what}"
        return defect(MASK, sentence, ev, rows)
    if abs(np.median(e1 / e0) - 1) < 0.1:
        what = f"a further weight of {np.median(e0):.4g} with score 0"
    sums = f"{np.median(f[rows]):.4g} with q = 0, {np.median(one[rows]):.4g} with one score"
    sentence = f"the denominator has {what}: a sink, padding, or a start of l"
    return defect(WEIGHTS, sentence, f"same V: sum {sums}", rows)


def _with_scores(o: Observed) -> Defect | None:
    """With q = 0 the sums are right: are they with scores?"""
    words = "with scores the weights do not sum to 1, with q = 0 they do"
    ratio, wrong, _ = o.same[MIXED]
    rows: np.ndarray = np.any(wrong, -1)
    if not rows.any():
        ratio, wrong, _ = o.same[ONE_SCORE]
        rows = np.any(wrong, -1)
        words = f"the weights do not sum to 1 if all scores are {o.flat_score:.3g}"
        return _sums(o, words, rows, ratio) if rows.any() else None
    return _sums(o, words, rows, ratio)


def _sums(o: Observed, words: str, rows, ratio) -> Defect:
    """The sums are wrong with scores: P is coarse, V is lost, or what moves with the maxima."""
    f = ratio[rows][np.isfinite(ratio[rows])]
    found = coarse_p(o.c, rows) if len(f) and np.abs(f - 1).max() < 0.15 else None
    if found is not None:
        return found
    u, bad = o.reads[COUNTS], {r.kind: r for r in o.reads.values()}
    if u.kind == Kind.MISSING:
        return defect(VALUES, AS_0, f"q = 0: {u.words}; {words}", u.rows, keys=u.keys_gone)
    words += f": {f.min():.4g} to {f.max():.4g}" if len(f) else ": not finite"
    if Kind.SMALL_LOST in bad:
        words += "; the smallest weights count in the denominator alone"
    kind = WEIGHTS
    if Kind.CELLS in bad:
        kind, words = joined(o, bad[Kind.CELLS]), f"{words}; {bad[Kind.CELLS].words}"
    return defect(kind, words, "same V: q = 0 right", rows)
