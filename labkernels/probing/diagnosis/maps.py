"""The index maps of Q and K, from the readings that show them: which row, key or channel it is."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from labkernels.defects import INDEX_K, INDEX_V
from labkernels.probing.case import Case
from labkernels.probing.observed import Q_READ, RANDOM, Observed
from labkernels.probing.reading import Kind, Reading, some_rows
from labkernels.probing.report import Defect, defect

ROWS_MATCHED = 40


@dataclass(frozen=True)
class Map:
    """What a reading of Q or K showed. moved: most of what is wrong is another row's q or key's K.

    words: which ones. Shapes: rows [B, H, M], the wrong ones, keys [N], those whose K is another's.
    """

    wrong: bool = False
    moved: bool = False
    words: str = ""
    rows: np.ndarray | None = None
    keys: np.ndarray | None = None


def logs(r: Reading, at=...) -> np.ndarray:
    """Return log weights as read, NaN where too small to tell."""
    return np.where(r.valid[at], r.got_log[at], np.nan)


@lru_cache(1)
def q_map(o: Observed) -> Map:
    """Return which row's q each row has."""
    c, s, r = o.c, o.c.s, o.reads.get(Q_READ)
    if r is None or r.kind == Kind.OK:
        return Map(rows=r and r.rows)
    coded = c.q.reshape(-1, s.dim)[:, o.code] * o.unit_score
    rows, other = some_rows(r.rows, ROWS_MATCHED), {}
    for at in map(tuple, rows.tolist()):
        x = logs(r, at)
        ok = np.isfinite(x)
        if ok.sum() < 8:
            continue
        y = coded[:, ok] - np.median(coded[:, ok], -1, keepdims=True)
        near = (np.abs(y - (x[ok] - np.median(x[ok]))) <= 3 * c.tol).mean(-1)
        source = tuple(int(i) for i in np.unravel_index(near.argmax(), c.q.shape[:3]))
        if near.max() > 0.9 and source != at:
            other[at] = source
    steps = {tuple(y - x for x, y in zip(k, v, strict=True)) for k, v in other.items()}
    listed = ", ".join(f"{k}<-{v}" for k, v in list(other.items())[:3])
    words = f"q of other rows (request, head, query): {listed}" if other else ""
    if len(steps) == 1:
        words = f"q of the row {steps.pop()} away (request, head, query)"
    return Map(True, len(other) > 0.6 * max(1, len(rows)), words, r.rows)


def _nearest(codes: np.ndarray, reach: float):
    """Return what finds the nearest of codes [n, 3], by the largest difference, for x [k, 3].

    It returns the distance (inf beyond the reach) and the code's index.
    """
    order = np.argsort(codes[:, 0])
    codes = codes[order]

    def find(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        gap, at = np.full(len(x), np.inf), np.zeros(len(x), int)
        low, high = (np.searchsorted(codes[:, 0], x[:, 0] + r) for r in (-reach, reach))
        for i in np.flatnonzero(high > low):
            d = np.abs(codes[low[i] : high[i]] - x[i]).max(-1)
            gap[i], at[i] = d.min(), order[low[i] + d.argmin()]
        return gap, at

    return find


@lru_cache(1)
def k_map(o: Observed) -> Map:
    """Return which key each slot shows: its three channels are sought in all requests and heads."""
    if Q_READ not in o.reads:
        return Map()
    c, s, reads = o.c, o.c.s, o.k_reads
    rows = np.logical_or.reduce([r.rows for r in reads])
    if not rows.any():
        return Map(rows=rows)
    codes = np.stack([c.k[..., i] * o.unit_score for i in o.channels], -1)
    find = _nearest(codes.reshape(-1, codes.shape[-1]), 5 * c.tol)
    found, total = {}, 0
    for b, h, m in _one_row_each(o, rows):
        x = np.stack([logs(r, (b, h, m)) for r in reads], -1)
        n = np.flatnonzero(np.isfinite(x).all(-1))
        if len(n) < 8:
            continue
        total += 1
        const = _constant(o, codes, find, x, n, (b, h, m))
        gap, i = find(x[n] - const)
        hit = gap <= 4 * c.tol
        src = np.stack(np.unravel_index(i, (s.batch, s.kv_heads, s.keys)), -1)
        here = np.stack([np.full(len(n), b), np.full(len(n), h // c.group), n], -1)
        moved = hit & ~(src == here).all(-1)
        if moved.mean() > 0.02 and hit.mean() > 0.7:
            found[b, h, m] = n[moved], src[moved], here[moved]
    if not found:
        return Map(True, rows=rows)
    n, src, here = next(iter(found.values()))
    keys = np.isin(np.arange(s.keys), np.concatenate([at for at, _, _ in found.values()]))
    steps = {tuple(x) for x in (src - here).tolist()}
    pairs = zip(n[:3].tolist(), src[:3].tolist(), strict=True)
    how = "e.g. " + ", ".join(f"{y} shows {tuple(x)}" for y, x in pairs)
    if len(steps) == 1:
        how = f"moved by {steps.pop()} (request, KV head, key)"
    return Map(True, len(found) >= 0.5 * total, f"K of other keys, {how}", rows, keys)


def _constant(o: Observed, codes, find, x, n, at) -> np.ndarray:
    """Return the number of each channel by which most of a row's log weights match some key."""
    c, (b, h, _) = o.c, at
    steps = (0, 1, -1, 2, -2, 8, -8, 16, -16, 32, -32, 64, -64)
    tries = [np.nanmedian(x - np.roll(codes[b, h // c.group], t, 0), 0) for t in steps]
    seen = codes.reshape(-1, *codes.shape[2:])[:, c.seen[at]]
    tries += list(-np.log(np.exp(seen).sum(1)))
    part, best = x[n[:: max(1, len(n) // 24)]], (-1.0, tries[0])
    for const in tries:
        hit = float((find(part - const)[0] <= 4 * c.tol).mean())
        if hit > best[0]:
            best = hit, const
        if hit > 0.95:
            break
    return best[1]


def _one_row_each(o: Observed, rows: np.ndarray):
    """Yield for each request and KV head the wrong row that sees most."""
    c = o.c
    for b, g in np.ndindex(c.s.batch, c.s.kv_heads):
        heads = slice(g * c.group, (g + 1) * c.group)
        if rows[b, heads].any():
            count = np.where(rows[b, heads], c.seen[b, heads].sum(-1), -1)
            h, m = np.unravel_index(count.argmax(), count.shape)
            yield b, g * c.group + int(h), int(m)


def of_pointers(c: Case) -> list[Defect]:
    """Compare one random call with what exchanged pointers give, under the model asked for."""
    if c.k.shape != c.v.shape:
        return []
    out = c.call(c.q, c.k, c.v)
    rows = c.far(out)
    for kind, words, k, v in (
        (INDEX_V, "K is read in the place of V", c.k, c.k),
        (INDEX_K, "V is read in the place of K", c.v, c.v),
        (INDEX_K, "K and V are exchanged", c.v, c.k),
    ):
        if rows.any() and not c.far(out, c.expected(c.q, k, v)[0])[rows].any():
            return [defect(kind, words, "one random call is right with these pointers", rows)]
    return []


def of_moved_v(o: Observed) -> Defect | None:
    """Return a defect if, with random scores, keys' weights meet the V of other keys.

    The one-hot V of key n then shows the weights of other keys, or of n and of others: the sum over
    keys is right, and no number for each row explains what is there.
    """
    c, r = o.c, o.reads[RANDOM]
    got, want = np.nan_to_num(r.got), r.want
    low = 2 * c.tol * want.max(-1, keepdims=True)
    votes, keys, words = [], np.zeros(c.s.keys, bool), ""
    for b in range(c.s.batch):
        rows = np.argwhere(r.rows[b])[:ROWS_MATCHED]
        if len(rows) < 3:
            continue
        at = (b, rows[:, 0], rows[:, 1])
        x, y = got[at], want[at]
        near = 2 * c.tol * y[:, None, :] + 0.02 * low[at][:, None]
        odd = np.flatnonzero((np.abs(x - y) > low[at]).any(0))
        # A slot with its own weight and another's is the other one's goal, and no wrong slot.
        keys |= (x < y - low[at]).any(0)
        for n in odd[: 4 * ROWS_MATCHED]:
            # Another key's weight alone, or with the key's own; 0 where no slot has this V.
            rest = np.stack([x[:, n], x[:, n] - y[:, n]], -1)
            hit = (np.abs(rest[:, :, None] - y[:, None, :]) <= near).all(0)
            hit[:, n] = False
            hit &= (y > low[at]).any(0)
            if hit.any() or (np.abs(x[:, n]) > low[at][:, 0]).any():
                votes.append(hit.any())
            if hit.any() and not words:
                words = f"V of key {n} meets the weight of key {int(np.nonzero(hit)[1][0])}"
    if not words or np.mean(votes) < 0.8:
        return None
    sentence = f"V of other keys than K's: {words}"
    return defect(INDEX_V, sentence, "random scores, one-hot V", r.rows, keys=keys)


def channel_map(o: Observed) -> tuple[str, np.ndarray, str] | None:
    """Read from `Q read` which channels are lost, have a factor, or are others.

    Returns the rule ("channel", "factor" or "altered"), the channels [D], and words; None if no
    pattern by channel is there.
    """
    c, s, r = o.c, o.c.s, o.reads[Q_READ]
    if r.kind == Kind.OK:
        return None
    rows = some_rows(r.rows, 60)
    at = tuple(rows.T)
    x, q = logs(r, at), c.q[at] * o.unit_score
    z = np.stack([np.nanmedian(x[:, o.code == i], -1) for i in range(s.dim)], -1)
    const = np.nanmedian(z - q, -1, keepdims=True)
    if np.nanmean(np.abs(z - q - const) <= 3 * c.tol) < 0.3:
        const = _row_constant(c, z, q)
    y = z - const
    odd = np.nanmax(np.abs(y - q), 0, initial=0) > 3 * c.tol
    if not odd.any() or (odd.all() and len(rows) < 3):
        return None
    found: dict[str, dict] = {"factor": {}, "channel": {}}
    for i in np.flatnonzero(odd):
        ok = np.isfinite(y[:, i])
        own, other = q[ok, i], y[ok, i]
        gap = np.abs(other[:, None] - q[ok]).max(0)
        slope = (other * own).sum() / max((own**2).sum(), 1e-30)
        if np.abs(other - slope * own).max() <= 4 * c.tol:
            found["factor"][i] = slope
        elif gap.min() <= 4 * c.tol and gap.argmin() != i:
            found["channel"][i] = int(gap.argmin())
    n = int(odd.sum())
    rule = next((name for name, of in found.items() if len(of) >= 0.8 * n), "altered")
    if rule == "altered":
        return (rule, odd, "channels are altered") if n < 0.8 * s.dim else None
    to = found[rule]
    of, first = list(to.values()), ", ".join(f"{i}<-{j}" for i, j in list(to.items())[:4])
    twice = "" if {*of} <= {*to} else ", channels that are read twice"
    words = f"channels are others: {first}{twice}"
    if rule == "factor":
        words = f"channels by a factor of {min(of):.4g} to {max(of):.4g}"
    return rule, odd, words


def _row_constant(c, z, q) -> np.ndarray:
    """Return each row's number by which most channels show the score of some channel."""
    best = (-1.0, z[:, :1] * 0)
    for i in (0, z.shape[1] // 2):
        for j in range(z.shape[1]):
            const = z[:, i : i + 1] - q[:, j : j + 1]
            e = np.abs((z - const)[:, :, None] - q[:, None]).max(0) <= 4 * c.tol
            if e.any(-1).mean() > best[0]:
                best = (e.any(-1).mean(), const)
    return best[1]
