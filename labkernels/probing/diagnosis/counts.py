"""q = 0: which keys count, and how much; the sums of the weights are right."""

import numpy as np

from labkernels.defects import INDEX_K, INDEX_OUT, INDEX_V, MASK, MERGE, SCORES, STORE, WEIGHTS
from labkernels.probing.diagnosis.maps import k_map, of_moved_v, q_map
from labkernels.probing.observed import COUNTS, RANDOM, Observed
from labkernels.probing.reading import Kind, residual
from labkernels.probing.report import Defect, defect, span


def of_counts(o: Observed) -> Defect | None:
    """Read the weights at q = 0."""
    u, c = o.reads[COUNTS], o.c
    if u.kind == Kind.OK:
        return None
    rows, ev = u.rows, f"q = 0: {u.words}"
    d = np.where(u.want > 0, u.got / np.maximum(u.want, 1e-300), np.nan)
    base = np.nanmedian(np.where(d > 0.02, d, np.nan), -1, keepdims=True)
    rel = d / np.where(base == 0, 1, base)
    bad = rows[..., None]
    leak = (u.want == 0) & (u.got > 8 * u.low) & bad
    gone = (u.want > 200 * u.low) & (u.got <= 0.02 * u.want) & bad
    twice = (np.abs(rel - np.round(rel)) < 0.05) & (np.round(rel) > 1) & (u.want > 0) & bad
    bias = u.kind in (Kind.DISTANCE, Kind.SCALE) or (
        u.kind == Kind.FUNCTION and c.model.slopes is not None
    )
    if bias and not leak.any():
        sentence = f"a bias by distance (ALiBi, slopes) or of the scores: {u.words}"
        return defect(SCORES, sentence, ev, rows)
    k, q = k_map(o), q_map(o)
    odd = (leak | gone)[rows].any(0)
    if leak.any() and k.moved and gone.any():
        return defect(INDEX_V, f"V of other keys than K's: {k.words}", ev, rows, keys=odd)
    if q.moved:
        sentence = f"rows have another row's output, its mask too: {q.words}"
        return defect(INDEX_OUT, sentence, ev, rows)
    if gone.any() and (gone | (u.want == 0))[rows].all():
        return defect(STORE, "small outputs are lost: no weight of 1 / n is left", ev, rows)
    moved = of_moved_v(o) if gone.any() else None
    if moved is not None:
        return moved
    if leak.any():
        words = f"{_number(leak, rows)} hidden keys are seen ({span(leak[rows].any(0))})"
        if gone.any():
            words += f"; {_number(gone, rows)} visible ones are not ({span(gone[rows].any(0))})"
        return defect(MASK, words, ev, rows, keys=odd)
    if gone.any() and twice.any():
        return _twice(o, gone, twice, rel, ev)
    if gone.any():
        return _gone(u, gone, rows, ev)
    if twice.any() and (np.abs(rel - 1)[~twice & (u.want > 0) & bad] < 0.05).all():
        words = f"keys count {int(np.nanmax(np.round(rel[twice])))} times in both sums"
        return defect(MASK, words, ev, rows, keys=twice[rows].any(0))
    return _factors(o, rel, rows, ev)


def _number(keys, rows) -> str:
    n = keys.sum(-1)[rows]
    return f"{n.min()} to {n.max()}"


def _twice(o: Observed, gone, twice, rel, ev) -> Defect:
    """Keys are read again in the place of others: V alone, or K and V."""
    r, rows = o.reads[RANDOM], o.reads[COUNTS].rows
    with_k = r.got / r.want
    with_k = with_k / np.nanmedian(np.where(r.valid, with_k, np.nan), -1, keepdims=True)
    hit = np.abs(with_k - np.round(rel))[twice & r.valid] < 0.1
    again = f"and keys {span(twice[rows].any(0))} are read again in their place"
    keys = gone[rows].any(0)
    if hit.size and hit.mean() > 0.8:
        sentence = f"K and V of these keys are not read, {again}"
        return defect(INDEX_K, sentence, f"{ev}; {k_map(o).words}", rows, keys=keys)
    return defect(INDEX_V, f"V of these keys is not read, {again}", ev, rows, keys=keys)


def _gone(u, gone, rows, ev) -> Defect:
    n = gone.sum(-1)[rows]
    rank = np.cumsum((u.want > 0)[..., ::-1], -1)[..., ::-1]
    last = (u.want > 0) & (rank <= gone.sum(-1, keepdims=True))
    lost = (n == n[0]).all() and (gone == last)[rows].all()
    which = f": the last {n[0]} that a row sees" if lost else ""
    sentence = f"keys are left out of both sums (hidden, skipped, or a split lost){which}"
    return defect(MASK, sentence, ev, rows, keys=gone[rows].any(0))


def _factors(o: Observed, rel, rows, ev) -> Defect:
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
