"""The index maps of Q and K, from the readings that show them: which row, key or channel it is."""

from dataclasses import dataclass

import numpy as np

from labkernels.defects import INDEX_K, INDEX_V
from labkernels.probing.observed import Q_READ, RANDOM, Observed
from labkernels.probing.reading import OK, Reading
from labkernels.probing.report import Defect, defect

ROWS_MATCHED = 40


@dataclass(frozen=True)
class QMap:
    """What `Q read` showed: rows that have another row's q, in words; rows [B, H, M]."""

    wrong: bool
    moved: bool = False
    words: str = ""
    rows: np.ndarray | None = None


@dataclass(frozen=True)
class KMap:
    """What the readings of K showed: keys [N] whose K is that of another slot, in words."""

    wrong: bool
    other: bool = False
    words: str = ""
    rows: np.ndarray | None = None
    keys: np.ndarray | None = None


def q_map(o: Observed) -> QMap:
    """Return which row's q each row has."""
    return _maps(o)[0]


def k_map(o: Observed) -> KMap:
    """Return which key each slot shows."""
    return _maps(o)[1]


def _maps(o: Observed) -> tuple[QMap, KMap]:
    if not o.maps:
        o.maps = (_q_map(o), _k_map(o)) if Q_READ in o.reads else (QMap(False), KMap(False))
    return o.maps


def logs(r, at=...) -> np.ndarray:
    """Return log weights as read, NaN where too small to tell."""
    with np.errstate(all="ignore"):
        return np.where(r.valid[at] & (r.got[at] > 0), np.log(r.got[at]), np.nan)


def some_rows(rows: np.ndarray, most: int = ROWS_MATCHED) -> list[tuple[int, int, int]]:
    """Return a few of the rows, spread evenly."""
    at = np.argwhere(rows)
    return [
        tuple(at[i].tolist()) for i in np.linspace(0, len(at) - 1, min(most, len(at))).astype(int)
    ]


def _q_map(o: Observed) -> QMap:
    c, s, r = o.c, o.c.s, o.reads[Q_READ]
    if r.kind == OK:
        return QMap(False, rows=r.rows)
    coded = c.q.reshape(-1, s.dim)[:, o.code] * o.unit_score
    moved = {}
    rows = some_rows(r.rows)
    for at in rows:
        x = logs(r, at)
        ok = np.isfinite(x)
        if ok.sum() < 8:
            continue
        y = coded[:, ok] - np.median(coded[:, ok], -1, keepdims=True)
        near = (np.abs(y - (x[ok] - np.median(x[ok]))) <= 3 * c.tol).mean(-1)
        if near.max() > 0.9:
            moved[at] = tuple(
                int(i) for i in np.unravel_index(near.argmax(), (s.batch, s.q_heads, s.queries))
            )
    other = {k: v for k, v in moved.items() if k != v}
    words = ""
    if other:
        steps = sorted({tuple(y - x for x, y in zip(k, v, strict=True)) for k, v in other.items()})
        listed = ", ".join(f"{k}<-{v}" for k, v in list(other.items())[:3])
        words = f"q of other rows (request, head, query): {listed}"
        if len(steps) == 1:
            words = f"q of the row {steps[0]} away (request, head, query)"
    return QMap(True, len(other) > 0.6 * max(1, len(rows)), words, r.rows)


class _Nearest:
    """Finds for each vector the nearest code [n, 3] within a reach, by the largest difference."""

    def __init__(self, codes: np.ndarray, reach: float):
        self.order, self.reach = np.argsort(codes[:, 0]), reach
        self.codes = codes[self.order]

    def __call__(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the distance (inf beyond the reach) and the code's index for each x [k, 3]."""
        gap, at = np.full(len(x), np.inf), np.zeros(len(x), int)
        low = np.searchsorted(self.codes[:, 0], x[:, 0] - self.reach)
        high = np.searchsorted(self.codes[:, 0], x[:, 0] + self.reach)
        for i in np.flatnonzero(high > low):
            d = np.abs(self.codes[low[i] : high[i]] - x[i]).max(-1)
            j = d.argmin()
            gap[i], at[i] = d[j], self.order[low[i] + j]
        return gap, at


def _k_map(o: Observed) -> KMap:
    """Match three channels of each key with those of all requests, heads and keys."""
    c, s, reads = o.c, o.c.s, o.k_reads
    rows = np.logical_or.reduce([r.rows for r in reads])
    if all(r.kind == OK for r in reads):
        return KMap(False, rows=rows)
    codes = np.stack([c.k[..., i] * o.unit_score for i in o.channels], -1)
    tree = _Nearest(codes.reshape(-1, codes.shape[-1]), 5 * c.tol)
    found, total = {}, 0
    for b, h, m in _one_row_each(o, rows):
        x = np.stack([logs(r, (b, h, m)) for r in reads], -1)
        n = np.flatnonzero(np.isfinite(x).all(-1))
        if len(n) < 8:
            continue
        total += 1
        const = _constant(o, codes, tree, x, n, (b, h, m))
        gap, i = tree(x[n] - const)
        hit = gap <= 4 * c.tol
        src = np.stack(np.unravel_index(i, (s.batch, s.kv_heads, s.keys)), -1)
        here = np.stack([np.full(len(n), b), np.full(len(n), h // c.group), n], -1)
        moved = hit & ~(src == here).all(-1)
        if moved.mean() > 0.02 and hit.mean() > 0.7:
            found[b, h, m] = n[moved], src[moved], here[moved]
    if not found:
        return KMap(True, rows=rows)
    n, src, here = next(iter(found.values()))
    keys = np.zeros(s.keys, bool)
    for at, _, _ in found.values():
        keys[at] = True
    steps = {tuple(int(v) for v in x) for x in src - here}
    pairs = list(zip(n.tolist(), src.tolist(), strict=True))[:3]
    how = "e.g. " + ", ".join(f"{y} shows {tuple(x)}" for y, x in pairs)
    if len(steps) == 1:
        how = f"moved by {steps.pop()} (request, KV head, key)"
    return KMap(True, len(found) >= 0.5 * total, f"K of other keys, {how}", rows, keys)


def _constant(o: Observed, codes, tree, x, n, at) -> np.ndarray:
    """Return the number of each channel by which most of a row's log weights match some key."""
    c, s = o.c, o.c.s
    b, h, m = at
    own = codes[b, h // c.group]
    steps = (0, 1, -1, 2, -2, 8, -8, 16, -16, 32, -32, 64, -64)
    tries = [np.nanmedian(x - np.roll(own, t, 0), 0) for t in steps]
    seen = c.seen[b, h, m]
    tries += [
        -np.log(np.exp(codes[i, j][seen]).sum(0)) for i in range(s.batch) for j in range(s.kv_heads)
    ]
    part, best = x[n[:: max(1, len(n) // 24)]], (-1.0, tries[0])
    for const in tries:
        hit = float((tree(part - const)[0] <= 4 * c.tol).mean())
        if hit > best[0]:
            best = hit, const
        if hit > 0.95:
            break
    return best[1]


def _one_row_each(o: Observed, rows: np.ndarray):
    """Yield for each request and KV head the wrong row that sees most."""
    c = o.c
    for b in range(c.s.batch):
        for g in range(c.s.kv_heads):
            heads = slice(g * c.group, (g + 1) * c.group)
            if rows[b, heads].any():
                count = np.where(rows[b, heads], c.seen[b, heads].sum(-1), -1)
                h, m = np.unravel_index(count.argmax(), count.shape)
                yield b, g * c.group + int(h), int(m)


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
            lost = (np.abs(x[:, n]) <= low[at][:, 0]).all()
            votes.append(1 if hit.any() else 0 if lost else -1)
            if hit.any() and not words:
                words = f"V of key {n} meets the weight of key {int(np.nonzero(hit)[1][0])}"
    there = [x for x in votes if x]
    if not words or np.mean(np.array(there) > 0) < 0.8:
        return None
    sentence = f"V of other keys than K's: {words}"
    return defect(INDEX_V, sentence, "random scores, one-hot V", r.rows, keys=keys)


def other_keys(o: Observed, channels: np.ndarray) -> Defect | None:
    """Read K at one altered channel: whether slots show that channel of other keys, or another."""
    c, channel = o.c, int(np.flatnonzero(channels)[0])
    one = np.zeros(c.s.dim)
    one[channel] = o.unit_score / c.model.scale
    r = Reading("K read again", c, c.read(c.q_like(one), c.k), c.scores(c.q_like(one), c.k))
    if r.kind == OK:
        return None
    tol, n = 4 * c.tol, np.arange(c.s.keys)
    found: dict[str, int] = {}
    keys, total = np.zeros(c.s.keys, bool), 0
    for b, h, m in _one_row_each(o, r.rows):
        x, k = logs(r, (b, h, m)), c.k[b, h // c.group] * o.unit_score
        own = k[:, channel]
        const = _mode(x - own, tol)
        off = np.isfinite(x) & (np.abs(x - const - own) > tol)
        if not off.any():
            continue
        total += 1
        for step in (s * t for s in (1, 2, 4, 8, 16, 32, 64) for t in (1, -1)):
            if (np.abs(x - const - own[(n + step) % len(n)]) <= tol)[off].mean() > 0.8:
                words = f"channel {channel} of the key {step:+d} away"
                found[words], keys = found.get(words, 0) + 1, keys | off
    if not found or max(found.values()) < 0.5 * total:
        return None
    words = max(found, key=lambda w: found[w])
    sentence = f"K of other keys in some channels: {words}"
    return defect(INDEX_K, sentence, "K read at an altered channel", r.rows, keys, channels)


def _mode(x: np.ndarray, tol: float) -> float:
    """Return the number within tol of which most finite entries lie."""
    x = np.sort(x[np.isfinite(x)])
    count = np.searchsorted(x, x + tol) - np.arange(len(x))
    return float(x[count.argmax() + count.max() // 2]) if len(x) else 0.0


def channel_map(o: Observed) -> tuple[str, np.ndarray, str] | None:
    """Read from `Q read` which channels are lost, have a factor, or are others.

    Returns the rule ("row", "channel", "factor" or "altered"), the channels [D], and words; None if
    no pattern by channel is there.
    """
    c, s, r = o.c, o.c.s, o.reads[Q_READ]
    if r.kind == OK:
        return None
    rows = some_rows(r.rows, 60)
    x = np.stack([logs(r, at) for at in rows])
    q = np.stack([c.q[at] for at in rows]) * o.unit_score
    with np.errstate(all="ignore"):
        z = np.stack([np.nanmedian(x[:, o.code == i], -1) for i in range(s.dim)], -1)
        const = np.nanmedian(z - q, -1, keepdims=True)
        if np.nanmean(np.abs(z - q - const) <= 3 * c.tol) < 0.3:
            const = _row_constant(c, z, q)
        y = z - const
        far = np.where(np.isfinite(y), np.abs(y - q), 0)
    odd = far.max(0) > 3 * c.tol
    if not odd.any() or (odd.all() and len(rows) < 3):
        return None
    to, rows_of, factor = {}, {}, {}
    for i in np.flatnonzero(odd):
        ok = np.isfinite(y[:, i])
        if not ok.any():
            continue
        gap = np.abs(y[ok, i][:, None] - q[ok]).max(0)
        slope = (y[ok, i] * q[ok, i]).sum() / max((q[ok, i] ** 2).sum(), 1e-30)
        step = _row_step(o, i, rows, y[:, i])
        if np.abs(y[ok, i] - slope * q[ok, i]).max() <= 4 * c.tol:
            factor[i] = slope
        elif step:
            rows_of[i] = step
        elif gap.min() <= 4 * c.tol and gap.argmin() != i:
            to[i] = int(gap.argmin())
    n = int(odd.sum())
    if len(factor) >= 0.8 * n:
        f = list(factor.values())
        return "factor", odd, f"channels by a factor of {min(f):.4g} to {max(f):.4g}"
    if len(rows_of) >= 0.8 * n:
        steps = sorted(set(rows_of.values()))
        return "row", odd, f"channels of q from the row {steps[0]} away (request, head, query)"
    if len(to) >= 0.8 * n:
        listed = ", ".join(f"{i}<-{j}" for i, j in list(to.items())[:4])
        again = "" if set(to.values()) <= set(to) else ", channels that are read twice"
        return "channel", odd, f"channels are others: {listed}{again}"
    return ("altered", odd, "channels are altered") if n < 0.8 * s.dim else None


def _row_step(o: Observed, i: int, rows, y) -> tuple[int, int, int] | None:
    """Return the step to the row whose channel i all rows show, if there is one."""
    s, q = o.c.s, o.c.q[..., i] * o.unit_score
    size = np.array([s.batch, s.q_heads, s.queries])
    steps = [
        (0, 0, 1),
        (0, 0, -1),
        (0, 1, 0),
        (0, -1, 0),
        (1, 0, 0),
        (-1, 0, 0),
        (0, 2, 0),
        (0, 0, 2),
    ]
    for step in steps:
        hits = [
            abs(y[j] - q[tuple((np.array(at) + step) % size)]) <= 4 * o.c.tol
            for j, at in enumerate(rows)
            if np.isfinite(y[j])
        ]
        if len(hits) > 3 and np.mean(hits) > 0.8:
            return step
    return None


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
