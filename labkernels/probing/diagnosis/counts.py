"""q = 0: whose V the rows have, which keys count, and how much; sums of the weights are right."""

import numpy as np

from labkernels.defects import BATCH, INDEX_K, INDEX_OUT, INDEX_V, MASK, MEMORY, SCORES, STORE
from labkernels.probing.diagnosis.maps import k_map, of_moved_v, q_map
from labkernels.probing.diagnosis.scores import factors
from labkernels.probing.observed import COUNTS, RANDOM, Observed
from labkernels.probing.reading import Kind
from labkernels.probing.report import Defect, defect, span


def of_heads(o: Observed) -> Defect | None:
    """Say whose V the rows have, and whether K or the output moved with it."""
    c, s, rows = o.c, o.c.s, o.map_wrong
    if not rows.any():
        return None
    share, own = (x[rows].reshape(int(rows.sum()), -1) for x in (o.share, o.own))
    other, mine = np.where(own > 0, 0, share), np.where(own > 0, share, 0).sum(-1)
    b, h, _ = np.nonzero(rows)
    request, head = np.divmod(other.argmax(-1), s.kv_heads)
    steps = np.stack([(request - b) % s.batch, head - h // c.group], -1)
    here = sorted({tuple(x) for x in steps.tolist()})[:3]
    what = "request" if all(x for x, _ in here) else "KV head"
    text = f"{what} moved by {here[0] if len(here) == 1 else here} (request, KV head)"
    ev = f"head map: {text}"
    added = BATCH if what == "request" else STORE
    whole = (np.abs(other.max(-1) - 1) < 0.03).all()
    most, kept, extra = (float(np.median(x)) for x in (other.max(-1), mine, other.sum(-1)))
    if not whole and kept > 0.9 and np.abs(share.sum(-1) - 1).max() > 0.03:
        return defect(added, f"another {what}'s output is added: {most:.3g} of it", ev, rows)
    k, q = k_map(o), q_map(o)
    if whole or (kept < 0.1 and most > 0.4):
        if q.moved:
            return defect(INDEX_OUT, f"rows have another row's output: {q.words}", ev, rows)
        if k.moved:
            sentence = f"K and V of another {what}: {text}"
            return defect(INDEX_K, sentence, f"K read: {k.words}", rows)
        return defect(INDEX_V, f"V of another {what}: {text}", "head map; K read right", rows)
    # No own key is missing, and a whole number of others is there besides: the row reads more keys.
    u, more = o.reads[COUNTS], other.sum(-1) / mine * c.seen.sum(-1)[rows]
    n = float(np.median(more))
    gone = ((u.want > 0) & (u.got <= 0.02 * u.want))[rows].any()
    even = n > 0.5 and (np.abs(more - n) < 0.2 * n).all()
    if what == "request" and not gone and even:
        sentence = f"about {n:.2g} keys of another request are read besides the row's own"
        return defect(MEMORY, sentence, f"{ev}; q = 0: no key is missing", rows)
    keys = tagged_keys(o, rows)
    if (keys.all() or not keys.any()) and np.ptp(other.sum(-1)) < 4 * c.tol:
        return defect(added, f"{extra:.3g} of another {what}'s output is added", ev, rows)
    sentence = f"{extra:.3g} of the weight falls on V of another {what}: {text}"
    if k.moved:
        return defect(INDEX_K, f"K and V: {sentence}", f"K read: {k.words}", rows, keys=keys)
    return defect(INDEX_V, sentence, u.words or "head map", rows, keys=keys)


def tagged_keys(o: Observed, rows: np.ndarray) -> np.ndarray:
    """Read by tags which keys' V comes from another request or head."""
    c, s = o.c, o.c.s
    tag = c.rounded(1 + np.arange(s.batch * s.kv_heads).reshape(s.batch, s.kv_heads) / 16)
    got = c.read(c.zero, c.k, tag)
    want, _ = c.weights(c.scores(c.zero, c.k))
    want = want * np.repeat(tag, c.group, 1)[:, :, None, None]
    off = np.abs(got - want) > 2 * c.tol * np.maximum(want, got) + 3 * c.floor
    return off[rows].any(0)


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
    leaks, lost, again = leak.any(), gone.any(), twice.any()
    slopes = u.kind == Kind.FUNCTION and c.model.slopes is not None
    if (slopes or u.kind in (Kind.DISTANCE, Kind.SCALE)) and not leaks:
        sentence = f"a bias by distance (ALiBi, slopes) or of the scores: {u.words}"
        return defect(SCORES, sentence, ev, rows)
    q, odd = q_map(o), (leak | gone)[rows].any(0)
    if q.moved:
        sentence = f"rows have another row's output, its mask too: {q.words}"
        return defect(INDEX_OUT, sentence, ev, rows)
    moved = of_moved_v(o) if lost else None
    if moved is not None:
        return moved
    if leaks:
        words = f"{_number(leak, rows)} hidden keys are seen ({span('key', leak[rows].any(0))})"
        if lost:
            words += (
                f"; {_number(gone, rows)} visible ones are not ({span('key', gone[rows].any(0))})"
            )
        return defect(MASK, words, ev, rows, keys=odd)
    if lost:
        return _twice(o, odd, twice, rel, ev) if again else _gone(u, gone, ev)
    if again and (np.abs(rel - 1)[~twice & (u.want > 0) & bad] < 0.05).all():
        words = f"keys count {int(np.nanmax(np.round(rel[twice])))} times in both sums"
        return defect(MASK, words, ev, rows, keys=twice[rows].any(0))
    return factors(o, rel, rows, ev)


def _number(keys, rows) -> str:
    n = keys.sum(-1)[rows]
    return f"{n.min()} to {n.max()}"


def _twice(o: Observed, keys, twice, rel, ev) -> Defect:
    """Keys are read again in the place of others: V alone, or K and V."""
    r, rows = o.reads[RANDOM], o.reads[COUNTS].rows
    with_k = r.got / r.want
    with_k = with_k / np.nanmedian(np.where(r.valid, with_k, np.nan), -1, keepdims=True)
    hit = np.abs(with_k - np.round(rel))[twice & r.valid] < 0.1
    again = f"and {span('key', twice[rows].any(0))} are read again in their place"
    if hit.size and hit.mean() > 0.8:
        sentence = f"K and V of these keys are not read, {again}"
        return defect(INDEX_K, sentence, f"{ev}; {k_map(o).words}", rows, keys=keys)
    return defect(INDEX_V, f"V of these keys is not read, {again}", ev, rows, keys=keys)


def _gone(u, gone, ev) -> Defect:
    """Keys have no weight: are they the last that a row sees?"""
    n = gone.sum(-1)
    seen = u.want > 0
    after = np.cumsum(seen[..., ::-1], -1)[..., ::-1]
    last = (gone == (seen & (after <= n[..., None])))[u.rows].all() and np.ptp(n[u.rows]) == 0
    which = f": the last {n[u.rows][0]} that a row sees" if last else ""
    sentence = f"keys are left out of both sums (hidden, skipped, or a split lost){which}"
    return defect(MASK, sentence, ev, u.rows, keys=gone.any((0, 1, 2)))
