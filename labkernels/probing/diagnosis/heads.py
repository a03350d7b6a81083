"""V constant for each request and KV head: rows that have another one's V."""

import numpy as np

from labkernels.defects import BATCH, INDEX_K, INDEX_OUT, INDEX_V, MEMORY, STORE
from labkernels.probing.diagnosis.maps import k_map, q_map
from labkernels.probing.observed import COUNTS, Observed
from labkernels.probing.reading import Kind
from labkernels.probing.report import Defect, defect


def of_heads(o: Observed) -> Defect | None:
    """Say whose V the rows have, and whether K or the output moved with it."""
    c, s, rows = o.c, o.c.s, o.map_wrong
    if not rows.any():
        return _hidden(o)
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


def _hidden(o: Observed) -> Defect | None:
    """A few keys of another request hide in the map, since V is equal in all of its keys."""
    k = k_map(o)
    if o.reads[COUNTS].kind != Kind.OK or not k.moved:
        return None
    keys = tagged_keys(o, np.ones(o.c.seen.shape[:3], bool))
    # The counts are right, so V's slot is K's; the tag says that V came from the same other head.
    sentence, ev = f"K and V of other keys: {k.words}", "K read; q = 0 with tagged heads"
    return defect(INDEX_K, sentence, ev, k.rows, keys=keys) if keys.any() else None


def tagged_keys(o: Observed, rows: np.ndarray) -> np.ndarray:
    """Read by tags which keys' V comes from another request or head."""
    c, s = o.c, o.c.s
    tag = c.rounded(1 + np.arange(s.batch * s.kv_heads).reshape(s.batch, s.kv_heads) / 16)
    got = c.read(c.zero, c.k, tag)
    want, _ = c.weights(c.scores(c.zero, c.k))
    want = want * np.repeat(tag, c.group, 1)[:, :, None, None]
    off = np.abs(got - want) > 2 * c.tol * np.maximum(want, got) + 3 * c.floor
    return off[rows].any(0)
