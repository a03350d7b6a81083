"""Mistakes in what a row reads, made in float64: heads, ends, masks, pages, 32-bit offsets.

Each function yields (name, where(i), outputs [..., Dv]) for a one_row.Row.
"""

import math
from typing import TYPE_CHECKING

import numpy as np

from labkernels.numerics.verdict.diagnosis import Mistakes

if TYPE_CHECKING:
    from labkernels.numerics.verdict.diagnosis.one_row import Row

_KEYS_MOST = 2**17  # keys of a pool whose pages are all tried; more would take seconds
_AT_ONCE = (2, 4, 8, 16)  # keys that a warp's lanes copy at once, 16 bytes each
_STEP_KEYS = (2, 4, 8, 16, 32, 64, 128)
_INT32 = 2**31  # elements: the first offset that a signed 32-bit integer cannot hold


def heads(row: "Row") -> Mistakes:
    """K, V or both come from another KV head."""
    for head in range(row.problem.kv_heads):
        if head == row.kv_head:
            continue
        for what, k_head, v_head in (
            ("K and V", head, head),
            ("K", head, row.kv_head),
            ("V", row.kv_head, head),
        ):
            scores, v = (x[: row.n_keys] for x in row.keys(k_head, v_head))
            t = np.exp2(scores - scores.max())
            where = f"KV head {head} for {row.kv_head}"
            yield f"{what} of another head", lambda i, where=where: where, (t @ v / t.sum())[None]


def ends(row: "Row") -> Mistakes:
    """The row sees a wrong number of keys."""
    scores, v = row.keys(row.kv_head, row.kv_head)
    m = scores[: row.n_keys].max()
    with np.errstate(invalid="ignore", over="ignore"):
        t = np.exp2(scores - m)
        totals = np.cumsum(t)
        outputs = np.cumsum(t[:, None] * v, axis=0) / totals[:, None]
    n, length, own = row.n_keys, row.kv_len, row.query + 1
    outputs[max(0, n - 2) : n] = np.nan  # the right number; one key left out is tried elsewhere

    def name(i: int) -> str:
        if i >= length:
            return "keys past the end"
        if row.problem.causal and i + 1 == own != n:
            return "causal mask aligned to the first key"
        if i + 1 == length:
            return "causal mask left out"
        return "keys that the mask hides" if i + 1 > n else "keys at the end left out"

    def where(i: int) -> str:
        if i >= length:
            return f"{i + 1 - length} of them"
        return f"{i + 1} keys in place of {n}"

    yield name, where, outputs


def halves(row: "Row") -> Mistakes:
    """Half of a step's keys are read twice, the others never, because an index lost a bit."""
    scores, v = (x[: row.n_keys] for x in row.keys(row.kv_head, row.kv_head))
    key = np.arange(len(scores))
    for step in _STEP_KEYS:
        place = key % step
        for how, read in (
            (f"the first {step // 2} of {step}", key - place + place % (step // 2)),
            (f"{step} as their first {step // 2} in pairs", key - place + place // 2),
        ):
            for tensor, s, values in (
                ("K", scores[read], v),
                ("V", scores, v[read]),
                ("K and V", scores[read], v[read]),
            ):
                t = np.exp2(s - s.max())
                where = f"{tensor}: {how}"
                yield "keys read twice", lambda i, w=where: w, (t @ values / t.sum())[None]


def cleared(row: "Row") -> Mistakes:
    """From some key on, all keys are 0: a wrong offset reads memory that nothing has written."""
    scores, v = (x[: row.n_keys] for x in row.keys(row.kv_head, row.kv_head))
    m = max(scores.max(), 0.0)  # 0, the score of a key of zeros
    t = np.exp2(scores - m)
    values = np.cumsum(t[:, None] * v, axis=0) - t[:, None] * v  # of the keys before each
    weights = (np.cumsum(t) - t)[:, None]
    zeros = np.arange(len(t), 0, -1)[:, None] * np.exp2(-m)
    for what, outputs in (
        ("K and V", values / (weights + zeros)),
        ("V", values / t.sum()),
    ):
        yield "keys read as 0", lambda i, what=what: f"{what} from key {i} on", outputs


def overflows(row: "Row") -> Mistakes:
    """Page offsets are cut to 32 bits: keys beyond are read as 0, left out, or wrap around."""
    size = row.problem.k_pool.shape[1]
    scores, v = (x[: row.n_keys] for x in row.keys(row.kv_head, row.kv_head))
    for tensor, pool in (("K", row.problem.k_pool), ("V", row.problem.v_pool)):
        offsets = row.pages * math.prod(pool.shape[1:])
        far = np.repeat(offsets >= _INT32, size)[: row.n_keys]
        if not far.any():
            continue
        where = (
            f"{int((offsets >= _INT32).sum())} pages begin {_INT32} elements or more into {tensor}"
        )
        read_as_0 = np.where(far, 0.0, scores), np.where(far[:, None], 0.0, v)
        ways = [read_as_0, (scores, read_as_0[1]), (np.where(far, -np.inf, scores), v)]
        wrapped = (offsets % (2 * _INT32)) // math.prod(pool.shape[1:])
        if (offsets < 2 * _INT32).all() or (wrapped < len(pool)).all():
            near = np.where(offsets < _INT32, row.pages, wrapped % len(pool))
            scores, v = row.keys(row.kv_head, row.kv_head, near)
            ways.append((scores[: row.n_keys], v[: row.n_keys]))
        outputs = []
        for s, values in ways:
            t = np.exp2(s - s.max())
            outputs.append(t @ values / t.sum())
        yield "a 32-bit offset overflows", lambda i, where=where: where, np.stack(outputs)


def lanes(row: "Row") -> Mistakes:
    """The place of a key among those that a warp copies at once is added twice."""
    scores, v = (x[: row.n_keys] for x in row.keys(row.kv_head, row.kv_head))
    key = np.arange(row.n_keys)
    outputs = []
    for at_once in _AT_ONCE:
        read = key + key % at_once
        inside = read < row.n_keys  # behind the last key there are zeros
        read = np.minimum(read, row.n_keys - 1)
        s = np.where(inside, scores[read], 0.0)
        t = np.exp2(s - s.max())
        outputs.append(t @ np.where(inside[:, None], v[read], 0.0) / t.sum())
    where = "key i of each {} is read from 2 i".format
    yield "key index added twice", lambda i: where(_AT_ONCE[i]), np.stack(outputs)


def pages(row: "Row") -> Mistakes:
    """A page is left out, or is read in place of another."""
    size, n_pages = row.problem.k_pool.shape[1], len(row.problem.k_pool)
    n_slots = -(-row.n_keys // size)
    own = row.pages[:n_slots]
    known = np.arange(n_pages) if n_pages * size <= _KEYS_MOST else own
    scores, v = row.keys(row.kv_head, row.kv_head, known)
    scores, v = scores.reshape(len(known), size), v.reshape(len(known), size, -1)
    mine = own if len(known) == n_pages else np.arange(n_slots)
    filled = np.minimum(size, row.n_keys - np.arange(n_slots) * size)
    inside = np.arange(size) < filled[:, None]
    m = scores[mine][inside].max()
    with np.errstate(invalid="ignore", over="ignore"):
        t = np.exp2(np.where(inside, scores[mine], -np.inf) - m)
        parts = np.einsum("sk,skd->sd", t, np.where(inside[..., None], v[mine], 0.0))
        o_left, l_left = parts.sum(0) - parts, (t.sum() - t.sum(-1))[:, None]
        if n_slots > 1:
            yield "page left out", lambda i: f"slot {i} of {n_slots}", o_left / l_left
        for n in np.unique(filled).tolist():
            slots = np.flatnonzero(filled == n)
            w = np.exp2(scores[:, :n] - m)
            o, l = np.einsum("pk,pkd->pd", w, v[:, :n]), w.sum(-1)[:, None]
            # the page that was read gives out (l_left + l) = o_left + o: take the nearest pair
            asked, given = row.out * l_left[slots] - o_left[slots], o - row.out * l
            squares = (asked**2).sum(-1)[:, None] + (given**2).sum(-1) - 2 * asked @ given.T
            miss = squares / (l_left[slots] + l.T) ** 2
            miss[~np.isfinite(miss) | (known == own[slots, None])] = np.inf
            at, page = np.unravel_index(miss.argmin(), miss.shape)
            slot = slots[at]
            yield (
                "wrong page",
                lambda i, slot=slot, page=page: f"slot {slot}: page {known[page]} for {own[slot]}",
                ((o_left[slot] + o[page]) / (l_left[slot] + l[page]))[None],
            )
