"""Bugs in what a query sees and at which score: masks, windows, caps, sinks, ALiBi, RoPE."""

import math

import torch

from labkernels.measure.strangers.bugs import Bug, rope
from labkernels.measure.strangers.inputs import Asked
from labkernels.measure.strangers.looked_at.eleventh.parts import (
    LOST,
    SEEN,
    finite,
    rounded,
    stored,
)
from labkernels.measure.strangers.wrong import Work, distances, keys_of, masked, places, scored

CAP, SINK, ALIBI = "soft cap(?! left out)", r"sinks?\b(?! left out)", "ALiBi(?! left out)"
WINDOW = f"window(?! left out)|{SEEN}"


def _open(w: Work):
    """Return the scores before the mask."""
    return w.q @ w.k.mT * w.call.scale


def _capped_first(w: Work):
    cap = w.call.asked.soft_cap
    return masked(cap * torch.tanh(w.q @ w.k.mT / cap) * w.call.scale, w.hidden)


def _tile_of_rows(w: Work, last: bool, size: int = 16):
    """Mask all rows of a tile of queries as its first or its last one."""
    m, n = w.s.shape[-2:]
    row = torch.arange(m)[:, None]
    row = (row // size * size + (size - 1) * last).clamp(max=m - 1)
    hide = keys_of(w) > row + (n - m)
    return masked(_open(w), hide) if w.call.causal else w.s


def _causal(place):
    """Return a bug: place(row, queries, keys, group) is the last key that a causal row sees."""

    def change(w: Work):
        m, n = w.s.shape[-2:]
        last = place(torch.arange(m)[:, None], m, n, w.call.group).clamp(min=0)
        return masked(_open(w), keys_of(w) > last) if w.call.causal else w.s

    return scored(change)


def _beyond_the_window(first):
    """Return a bug: first(queries, keys) is True where keys come too early."""

    def change(w: Work):
        query, key = places(w)
        return masked(_open(w), (key > query) | first(query, key))

    return scored(change)


def _tree(w: Work):
    """New tokens see their ancestors in a binary tree, and all old keys."""
    m, n = w.s.shape[-2:]
    sees = torch.zeros(m, n, dtype=torch.bool)
    sees[:, : n - m] = True
    for i in range(m):
        node = i
        while node >= 0:
            sees[i, n - m + node] = True
            node = (node - 1) // 2 if node else -1
    return masked(w.s, ~sees) if w.call.causal else w.s


def _with_sinks(change):
    """Return a bug in the sinks: change(work, logits [Hq, 1, 1], m) returns what they add to l."""

    def bug(w: Work):
        logits = w.call.sinks.double()[:, None, None]
        m = finite(w.s.amax(-1, keepdim=True))
        p = torch.exp(w.s - m)
        l = p.sum(-1, keepdim=True) + change(w, logits, m)
        return stored(w, rounded(p, w) @ w.v, l)

    return bug


def _of_kv_head(w: Work, x):
    heads = torch.arange(w.q.shape[1]) // w.call.group
    return x[heads]


def _slopes(change):
    """Return a bug: change(work, slopes [Hq, 1, 1], distances) returns what is taken off scores."""

    def bias(w: Work):
        slopes = w.call.slopes.double()[:, None, None]
        return masked(_open(w) - change(w, slopes, distances(w.s)), w.hidden)

    return scored(bias)


def _buckets(w: Work):
    """A bias by the logarithm of the distance, as of T5."""
    query, key = places(w)
    return w.s - 0.15 * torch.log2(1.0 + (query - key).abs())


def _turned(x, by: int):
    """Return x turned by as many places, the same for each row."""
    rows = x.reshape(-1, 1, 1, x.shape[-1])
    return rope(rows, interleaved=True, base=1e4, first=by).reshape(x.shape)


def _half_sign(w: Work, x):
    half = x.shape[-1] // 2
    return torch.cat([x[..., :half], -x[..., half:]], -1)


def _by_length(w: Work):
    """Scores times the logarithm of the keys seen, over that of 512."""
    seen = (~w.hidden).sum(-1, keepdim=True).double()
    return masked(_open(w) * torch.log(seen + 1) / math.log(512), w.hidden)


def _two_terms(s, cap):
    x = (s / cap).clamp(-1, 1)
    return cap * (x - x**3 / 3)


WRONG: dict[str, tuple[Bug, str]] = {
    "rows of a packed group divided by the group once more": (
        _causal(lambda row, m, n, group: row // group + n - m),
        f"{LOST}|causal mask(?! left out)|another mask",
    ),
    "a tile of rows masked as its first row": (
        scored(lambda w: _tile_of_rows(w, last=False)),
        f"{LOST}|causal mask(?! left out)|another mask",
    ),
    "a tile of rows masked as its last row": (scored(lambda w: _tile_of_rows(w, last=True)), SEEN),
    "the diagonal counted from the padded length": (
        _causal(lambda row, m, n, group: row + -(-n // 16) * 16 - m),
        SEEN,
    ),
    "the mask of four ranks that take keys in turn, by local places": (
        _causal(lambda row, m, n, group: (row + n - m) // 4 * 4 + 3),
        SEEN,
    ),
    "a window that begins at a whole tile": (
        _beyond_the_window(lambda query, key: key < (query - 40) // 16 * 16),
        WINDOW,
    ),
    "the window of the last query for all": (
        _beyond_the_window(lambda query, key: key < query.max() - 60),
        f"window(?! left out)|{LOST}|another mask",
    ),
    "the soft cap before the scale": (scored(_capped_first), CAP),
    "the soft cap's tanh by two terms": (
        scored(lambda w: masked(_two_terms(_open(w), 3.0), w.hidden)),
        f"{CAP}|scores capped by|scores clamped",
    ),
    "sinks by KV head": (_with_sinks(lambda w, x, m: torch.exp(_of_kv_head(w, x) - m)), SINK),
    "a sink in each of four splits": (_with_sinks(lambda w, x, m: 4 * torch.exp(x - m)), SINK),
    "sinks in base 2 of logits in base e": (
        _with_sinks(lambda w, x, m: torch.exp2(x - m / math.log(2))),
        SINK,
    ),
    "slopes of ALiBi by KV head": (_slopes(lambda w, x, far: _of_kv_head(w, x) * far), ALIBI),
    "ALiBi's distances within a split of 64 keys": (
        _slopes(lambda w, x, far: x * (63 - keys_of(w) % 64)),
        f"{ALIBI}|keys by a factor|weights of keys|bias",
    ),
    "ALiBi times the scale of the scores": (
        _slopes(lambda w, x, far: x * w.call.scale * far),
        ALIBI,
    ),
    "a bias by the logarithm of the distance": (scored(_buckets), "bias|weights of keys"),
    "the tree of another draft": (
        scored(_tree),
        f"{LOST}|causal mask(?! left out)|another mask|weights of keys dropped",
    ),
    "K rotated once more": (
        scored(lambda w: w.scores(k=rope(w.k, interleaved=False, base=1e4, first=1))),
        "RoPE(?! of)",
    ),
    "queries rotated by their row": (
        scored(lambda w: w.scores(q=_turned(w.q, w.q.shape[2] - w.k.shape[2]))),
        "RoPE(?! of)",
    ),
    "a sign lost in the second half of the queries": (
        scored(lambda w: w.scores(q=_half_sign(w, w.q))),
        "(Q|K) with the wrong sign|channels of Q or K",
    ),
    "scores by the logarithm of the length": (scored(_by_length), "wrong scale"),
}
"""Name: the bug, and a pattern that a right name for it matches."""
ASKED: dict[str, Asked] = {
    "a window that begins at a whole tile": Asked(window_left=40),
    "the window of the last query for all": Asked(window_left=60),
    "the soft cap before the scale": Asked(soft_cap=5.0),
    "the soft cap's tanh by two terms": Asked(soft_cap=3.0),
    "sinks by KV head": Asked(sinks=True),
    "a sink in each of four splits": Asked(sinks=True),
    "sinks in base 2 of logits in base e": Asked(sinks=True),
    "slopes of ALiBi by KV head": Asked(alibi=True),
    "ALiBi's distances within a split of 64 keys": Asked(alibi=True),
    "ALiBi times the scale of the scores": Asked(alibi=True),
}
"""What a bug needs to be asked for."""
