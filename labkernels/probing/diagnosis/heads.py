"""V constant for each request and KV head: rows that have another one's V."""

import numpy as np

from labkernels.defects import BATCH, INDEX_K, INDEX_OUT, INDEX_V, MEMORY, STORE
from labkernels.probing.diagnosis.maps import k_map, q_map
from labkernels.probing.observed import COUNTS, Observed
from labkernels.probing.reading import OK
from labkernels.probing.report import Defect, defect


def of_heads(o: Observed) -> Defect | None:
    """Say whose V the rows have, and whether K or the output moved with it."""
    c, s = o.c, o.c.s
    if not o.map_wrong.any():
        return _hidden(o)
    rows = o.map_wrong
    share, own = (x[rows].reshape(int(rows.sum()), -1) for x in (o.share, o.own))
    other = np.where(own > 0, 0, share)
    top = other.argmax(-1)
    b, h, _ = np.nonzero(rows)
    steps = zip((top // s.kv_heads - b) % s.batch, top % s.kv_heads - h // c.group, strict=True)
    here = sorted({(int(x), int(y)) for x, y in steps})[:3]
    what = "request" if all(x for x, _ in here) else "KV head"
    added = BATCH if what == "request" else STORE
    text = f"{what} moved by {here[0] if len(here) == 1 else here} (request, KV head)"
    whole = np.abs(other.max(-1) - 1) < 0.03
    most = float(np.median(other.max(-1)))
    kept = float(np.median(np.where(own > 0, share, 0).sum(-1)))
    if not whole.all() and kept > 0.9 and np.abs(share.sum(-1) - 1).max() > 0.03:
        sentence = f"another {what}'s output is added: {most:.3g} of it"
        return defect(added, sentence, f"head map: {text}", rows)
    k, q = k_map(o), q_map(o)
    if whole.all() or (kept < 0.1 and most > 0.4):
        if q.moved:
            sentence = f"rows have another row's output: {q.words}"
            return defect(INDEX_OUT, sentence, f"head map: {text}", rows)
        if k.other:
            sentence = f"K and V of another {what}: {text}"
            return defect(INDEX_K, sentence, f"K read: {k.words}", rows)
        return defect(INDEX_V, f"V of another {what}: {text}", "head map; K read right", rows)
    # No own key is missing, and a whole number of others is there besides: the row reads more keys.
    with np.errstate(all="ignore"):
        own_sum = np.where(own > 0, share, 0).sum(-1)
        more = other.sum(-1) / own_sum * c.seen.sum(-1)[rows]
    u, extra = o.reads[COUNTS], float(np.median(more))
    gone = ((u.want > 0) & (u.got <= 0.02 * u.want))[rows].any()
    if (
        what == "request"
        and not gone
        and extra > 0.5
        and (np.abs(more - extra) < 0.2 * extra).all()
    ):
        sentence = f"about {extra:.2g} keys of another request are read besides the row's own"
        return defect(MEMORY, sentence, f"head map: {text}; q = 0: no key is missing", rows)
    frac, keys = float(np.median(other.sum(-1))), tagged_keys(o, rows)
    if (keys.all() or not keys.any()) and np.ptp(other.sum(-1)) < 4 * c.tol:
        sentence = f"{frac:.3g} of another {what}'s output is added"
        return defect(added, sentence, f"head map: {text}", rows)
    sentence = f"{frac:.3g} of the weight falls on V of another {what}: {text}"
    if k.other:
        return defect(INDEX_K, f"K and V: {sentence}", f"K read: {k.words}", rows, keys=keys)
    return defect(INDEX_V, sentence, o.reads[COUNTS].words or "head map", rows, keys=keys)


def _hidden(o: Observed) -> Defect | None:
    """A few keys of another request hide in the map, since V is equal in all of its keys."""
    if o.reads[COUNTS].kind != OK or not k_map(o).other:
        return None
    k = k_map(o)
    keys = tagged_keys(o, np.ones(o.c.seen.shape[:3], bool))
    if not keys.any():
        return None
    # The counts are right, so V's slot is K's; the tag says that V came from the same other head.
    sentence = f"K and V of other keys: {k.words}"
    return defect(INDEX_K, sentence, "K read; q = 0 with tagged heads", k.rows, keys=keys)


def tagged_keys(o: Observed, rows: np.ndarray) -> np.ndarray:
    """Read by tags which keys' V comes from another request or head."""
    c, s = o.c, o.c.s
    tag = c.rounded(1 + np.arange(s.batch * s.kv_heads).reshape(s.batch, s.kv_heads) / 16)
    got = c.read(c.zero, c.k, tag)
    want, _ = c.weights(c.scores(c.zero, c.k))
    want = want * np.repeat(tag, c.group, 1)[:, :, None, None]
    off = np.abs(got - want) > 2 * c.tol * np.maximum(want, got) + 3 * c.floor
    return off[rows].any(0)
