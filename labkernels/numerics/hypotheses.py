"""Names for a bug: outputs that a known mistake would give, held against the worst row.

A row is one sample and query head. A mistake is named if, once it is made in float64 too, what is
left of the error is near rounding, and far below what it was.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from labkernels.numerics import oracle, rounding

EXPLAINED_RMS = 2.5  # of z left over: rounding, and first-order terms that are left out
SMALLER_BY = 2.0
_SPLIT_KEYS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_PAGES_MOST = 2**14  # pairs of a slot and a page: more would take seconds


@dataclass(frozen=True)
class Match:
    """A mistake and its place; rms is that of z once it is accounted for, was that before."""

    name: str
    where: str
    rms: float
    was: float

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        left = f": rms z {self.was:.3g} before, {self.rms:.2g} after" if self.rms >= 0 else ""
        return f"{self.name}{place}{left}"


@dataclass(frozen=True)
class Row:
    """The worst row and all that it could have been made of.

    Shapes: out, o, sigma [Dv]; q [D] multiplied by scale; pages: those of its request, in order;
    outputs: the float64 outputs of all rows [B, Hq, Dv]. quantum: spacing of out's format.
    """

    place: tuple[int, int]
    out: np.ndarray
    sigma: np.ndarray
    q: np.ndarray
    k_pool: np.ndarray
    v_pool: np.ndarray
    pages: np.ndarray
    kv_len: int
    kv_head: int
    outputs: np.ndarray
    out_format: str

    def keys(self, k_head: int, v_head: int) -> tuple[np.ndarray, np.ndarray]:
        """K [L, D] of one KV head and V [L, Dv] of another, in float64."""
        n_pages = -(-self.kv_len // self.k_pool.shape[1])
        numbers = np.asarray(self.pages[:n_pages], np.int64)
        return tuple(
            np.asarray(pool[numbers][:, :, head], np.float64).reshape(-1, pool.shape[-1])
            for pool, head in ((self.k_pool, k_head), (self.v_pool, v_head))
        )


def explain(row: Row) -> list[Match]:
    """The mistakes that explain the row's error, the best first; at most three."""
    was = _left(row, row.outputs[row.place])
    found = []
    for name, where, outputs in _alternatives(row):
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            left = np.atleast_1d(_left(row, outputs))
        left = np.where(np.isfinite(left), left, np.inf)
        if left.size == 0:
            continue
        i = int(left.argmin())
        if left[i] <= EXPLAINED_RMS and left[i] * SMALLER_BY <= was:
            found.append(Match(name, where(i), float(left[i]), float(was)))
    return sorted(found, key=lambda match: match.rms)[:3]


def _left(row: Row, outputs):
    """The rms of z against other outputs. Shapes: [..., Dv] -> [...]."""
    store = rounding.quantum(outputs, row.out_format) ** 2 / 12
    return np.sqrt(((row.out - outputs) ** 2 / np.maximum(row.sigma**2, store)).mean(-1))


def _alternatives(row: Row) -> Iterator:
    """Yield (name, where(i), outputs [..., Dv]) of every mistake known."""
    heads = row.outputs.shape[1]
    others = row.outputs.reshape(-1, row.outputs.shape[-1]).copy()
    others[row.place[0] * heads + row.place[1]] = np.nan
    yield "another row's output", lambda i: f"of sample {i // heads}, head {i % heads}", others
    yield "row never written", lambda i: "it is 0", np.zeros((1, others.shape[-1]))
    k, v = (x[: row.kv_len] for x in row.keys(row.kv_head, row.kv_head))
    scores = (k @ row.q) * oracle.LOG2_E
    yield from _key_mistakes(scores, v)
    yield from _weight_mistakes(scores, v, row.q.size)
    yield from _merge_mistakes(scores, v)
    yield from _wrong_heads(row)
    yield from _extra_keys(row, scores, v)
    if row.k_pool.shape[1] > 1:
        yield from _page_mistakes(row)


def _key_mistakes(scores, v) -> Iterator:
    t = np.exp2(scores - scores.max())
    total, n = t.sum(), t @ v
    tv = t[:, None] * v

    def where(i):
        return f"key {i} of {len(t)}"

    with np.errstate(invalid="ignore", divide="ignore"):
        yield "key left out", where, (n - tv) / (total - t)[:, None]
    yield "key counted twice", where, (n + tv) / (total + t)[:, None]
    yield "value of a key read as 0", where, (n - tv) / total
    for step, word in ((1, "before"), (-1, "after")):
        shifted = np.roll(v, step, axis=0)
        yield f"V of the key {word}", lambda i: "", (t @ shifted / total)[None]


def _weight_mistakes(scores, v, head_dim: int) -> Iterator:
    root = head_dim**0.5
    factors = {
        "log2(e) left out": np.log(2),
        "log2(e) applied twice": oracle.LOG2_E,
        "scale left out": root,
        "scale applied twice": 1 / root,
    }
    if not np.isfinite(scores).all():
        return
    for name, factor in factors.items():
        t = np.exp2(factor * (scores - scores.max()))
        yield f"wrong scale: {name}", lambda i: "", (t @ v / t.sum())[None]
    for step in (16, 32, 64):
        for warps in (1, 2, 4, 8):
            o = _without_rescale(scores, v, step, warps)
            where = f"steps of {step} keys, {warps} in turn"
            yield "o not rescaled when the maximum moves", lambda i, where=where: where, o[None]


def _without_rescale(scores, v, step: int, warps: int) -> np.ndarray:
    m, total, o = scores.max(), np.exp2(scores - scores.max()).sum(), 0.0
    for warp in range(warps):
        running, part = -np.inf, 0.0
        for first in range(warp * step, len(scores), warps * step):
            s = scores[first : first + step]
            running = max(running, s.max())
            part = part + np.exp2(s - running) @ v[first : first + step]
        if running > -np.inf:
            o = o + np.exp2(running - m) * part
    return o / total


def _merge_mistakes(scores, v) -> Iterator:
    """Splits merged in the wrong base, or one of them left out."""
    for keys in _SPLIT_KEYS:
        starts = np.arange(0, len(scores), keys)
        if not 2 <= len(starts) <= 512:
            continue
        m = np.maximum.reduceat(scores, starts)
        t = np.exp2(scores - np.repeat(m, np.diff([*starts, len(scores)])))
        total = np.add.reduceat(t, starts)
        o = np.add.reduceat(t[:, None] * v, starts, axis=0)
        lse2 = m + np.log2(total)
        words = f"splits of {keys} keys"
        for kind, weight in (("exp for exp2", 1.0), ("exp2 of natural logs", np.log(2) ** 2)):
            factor = oracle.LOG2_E * weight
            w = np.exp2(factor * (m - m.max()))
            yield (
                f"mixed log base at the merge: {kind}",
                lambda i, words=words: words,
                (w @ o / (w @ total))[None],
            )
            w = np.exp2(factor * (lse2 - lse2.max()))
            yield (
                f"mixed log base at the merge of lse: {kind}",
                lambda i, words=words: words,
                (w @ (o / total[:, None]) / w.sum())[None],
            )
        w = np.exp2(m - m.max())
        rest = (w @ o - w[:, None] * o) / (w @ total - w * total)[:, None]
        yield "split left out", lambda i, keys=keys: f"keys {i * keys} to {i * keys + keys}", rest


def _wrong_heads(row: Row) -> Iterator:
    for head in range(row.k_pool.shape[2]):
        if head == row.kv_head:
            continue
        for what, k_head, v_head in (
            ("K and V", head, head),
            ("K", head, row.kv_head),
            ("V", row.kv_head, head),
        ):
            k, v = (x[: row.kv_len] for x in row.keys(k_head, v_head))
            scores = (k @ row.q) * oracle.LOG2_E
            t = np.exp2(scores - scores.max())
            where = f"KV head {head} for {row.kv_head}"
            yield f"{what} of another head", lambda i, where=where: where, (t @ v / t.sum())[None]


def _extra_keys(row: Row, scores, v) -> Iterator:
    """Keys past the end, as far as the last page holds any, and rows of zeros in their place."""
    t = np.exp2(scores - scores.max())
    total, n = t.sum(), t @ v
    more_k, more_v = (x[row.kv_len :] for x in row.keys(row.kv_head, row.kv_head))
    if len(more_k) and np.isfinite(more_k).all() and np.isfinite(more_v).all():
        extra = np.exp2((more_k @ row.q) * oracle.LOG2_E - scores.max())
        outputs = n + np.cumsum(extra[:, None] * more_v, axis=0)
        outputs = outputs / (total + np.cumsum(extra))[:, None]
        yield "keys past the end", lambda i: f"{i + 1} of them", outputs
    count = np.arange(1, 257)
    zeros = n / (total + count[:, None] * np.exp2(-scores.max()))
    yield "padding in the denominator", lambda i: f"{i + 1} keys of score 0", zeros


def _page_mistakes(row: Row) -> Iterator:
    size, n_slots = row.k_pool.shape[1], -(-row.kv_len // row.k_pool.shape[1])
    k = np.asarray(row.k_pool[:, :, row.kv_head], np.float64)
    v = np.asarray(row.v_pool[:, :, row.kv_head], np.float64)
    scores = (k @ row.q) * oracle.LOG2_E
    own = np.asarray(row.pages[:n_slots], np.int64)
    filled = np.minimum(size, row.kv_len - np.arange(n_slots) * size)
    inside = np.arange(size) < filled[:, None]
    m = scores[own][inside].max()
    with np.errstate(invalid="ignore", over="ignore"):
        t = np.exp2(np.where(inside, scores[own], -np.inf) - m)
        totals = t.sum(-1)
        parts = np.einsum("sk,skd->sd", t, np.where(inside[..., None], v[own], 0.0))
        if n_slots > 1:
            rest = (parts.sum(0) - parts) / (totals.sum() - totals)[:, None]
            yield "page left out", lambda i: f"slot {i} of {n_slots}", rest
        others = np.arange(len(k)) if n_slots * len(k) <= _PAGES_MOST else own
        for slot in range(n_slots if n_slots * len(others) <= _PAGES_MOST else 0):
            n = filled[slot]
            w = np.exp2(scores[others, :n] - m)
            o = parts.sum(0) - parts[slot] + np.einsum("pk,pkd->pd", w, v[others, :n])
            o = o / (totals.sum() - totals[slot] + w.sum(-1))[:, None]
            yield (
                "wrong page",
                lambda i, slot=slot: f"slot {slot}: page {others[i]} for {own[slot]}",
                np.where((others == own[slot])[:, None], np.nan, o),
            )
