"""Bugs of the grid: heads, rows, lanes and warps, and what an epilogue stores where."""

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.eleventh.parts import (
    CHANNELS,
    DENOMINATOR,
    Tile,
    finite,
    from_cache,
    looped,
    stored,
    weighed,
    weights,
    where_it_matters,
)
from labkernels.measure.strangers.wrong import Work, attend, keys_of, scored
from labkernels.measure.strangers.wrong import stored as epilogue

HEADS = "GQA|KV heads|of another head"


def _kv_heads_of(w: Work, head):
    """Return K and V of other KV heads: head(number of query heads) is their number."""
    number = head(torch.arange(w.q.shape[1])) % w.call.k.shape[1]
    k, v = (x[:, :: w.call.group][:, number] for x in (w.k, w.v))
    return attend(w.scores(k=k), v, w.call.q.dtype)


def _last_group_reads_first(w: Work, x):
    """The last group of query heads reads the first KV head."""
    x = x.clone()
    x[:, -w.call.group :] = x[:, :1]
    return x


def _q_of_the_row_before(w: Work):
    """Rows 4 to 7 of 8 read the queries of rows 0 to 3, under their own mask."""
    row = torch.arange(w.q.shape[2])
    return w.scores(q=w.q[:, :, row - row % 8 // 4 * 4])


def _mean_of_group(w: Work):
    """The queries of a group are averaged."""
    q = w.q.unflatten(1, (-1, w.call.group))
    return w.scores(q=q.mean(2, keepdim=True).expand_as(q).flatten(1, 2))


def _half_of_lanes(w: Work, p, l):
    """The last step of a butterfly is missing in l: of 32 lanes, 16 count."""
    return p, p[..., keys_of(w) % 32 < 16].sum(-1, keepdim=True)


def _own_maxima(w: Work):
    """Four warps take 16 keys in turn; each keeps its own maximum, and the sums are added."""

    def once(w: Work, own: bool):
        warp = keys_of(w) // 16 % 4
        o, l = 0.0, 0.0
        for i in range(4):
            s = w.s[..., warp == i]
            if s.shape[-1]:
                m = s.amax(-1, keepdim=True) if own else w.s.amax(-1, keepdim=True)
                p = torch.exp(s - finite(m))
                o, l = o + p @ w.v[:, :, warp == i], l + p.sum(-1, keepdim=True)
        return stored(w, o, l)

    return where_it_matters(w, once(w, True), once(w, False))


def _rows_late(w: Work, out):
    """The last, partial tile of 8 rows is stored a row too far."""
    m = out.shape[2]
    first = m // 8 * 8
    out = out.clone()
    out[:, :, first + 1 :] = out[:, :, first : m - 1].clone()
    return out


def _chunks_by_row(w: Work, out):
    """Odd rows, counted over heads and queries, have their chunks of 8 channels in pairs turned."""
    pairs = out.shape[3] // 16 * 16
    turned = out[..., :pairs].unflatten(-1, (-1, 2, 8)).flip(-2).flatten(-3)
    turned = torch.cat([turned, out[..., pairs:]], -1)
    row = torch.arange(out.shape[1])[:, None] * out.shape[2] + torch.arange(out.shape[2])
    return torch.where((row % 2 == 1)[..., None], turned, out)


def _times(out, factors):
    return (out.double() * factors).to(out.dtype)


def _head_factors(w: Work, out):
    """Each head's output has the scale of the head behind."""
    heads = torch.arange(out.shape[1]).double()
    scale = 1 + 0.5 * torch.sin(2 * heads)
    return _times(out, (scale.roll(-1) / scale)[:, None, None])


def _row_factors(w: Work, out):
    """Each row is divided by a norm that was meant for another tensor."""
    rows = torch.arange(out.shape[2]) + torch.arange(out.shape[1])[:, None]
    return _times(out, (1.1 + 0.3 * torch.cos(1.7 * rows))[..., None])


def _with_query(w: Work, out):
    """A tenth of the query is added, as far as the two are equally wide."""
    d = min(out.shape[3], w.q.shape[3])
    more = torch.zeros_like(out.double())
    more[..., :d] = 0.1 * w.q[..., :d]
    return (out.double() + more).to(out.dtype)


def _with_last_value(w: Work, out):
    """A tenth of the newest key's value is added."""
    return (out.double() + 0.1 * w.v[:, :, -1:]).to(out.dtype)


def _tail_rows_old(w: Work, out):
    """Rows past the last whole tile of 8 are not written, and hold what lay there."""
    first = out.shape[2] // 8 * 8
    old = torch.randn(out.shape, generator=torch.Generator().manual_seed(9)).to(out.dtype)
    return torch.cat([out[:, :, :first], old[:, :, first:]], 2) if first else out


def _lse_in_front(w: Work, out):
    """The log-sum-exp lies where the first channel of each row belongs."""
    _, l, m = weights(w)
    out = out.clone()
    out[..., :1] = (finite(m) + l.clamp(min=1e-300).log()).to(out.dtype)
    return out


def _chunk_for_next(w: Work):
    """The product of q and k takes the second quarter of the channels twice, the third never."""
    n, q, k = w.q.shape[-1] // 4, w.q.clone(), w.k.clone()
    for x in (q, k):
        x[..., 2 * n : 3 * n] = x[..., n : 2 * n].clone()
    return w.scores(q, k)


def _kept_rows(tile: Tile, w: Work):
    """The odd rows of a fragment keep the factors of the even ones, in l alone."""
    rows = torch.arange(tile.of_l.shape[2])
    tile.of_l = tile.of_l[:, :, rows // 2 * 2]


WRONG: dict[str, tuple[Bug, str]] = {
    "KV heads by a group of four for all models": (
        lambda w: _kv_heads_of(w, lambda head: head // 4),
        HEADS,
    ),
    "KV heads from the last": (
        lambda w: _kv_heads_of(w, lambda head: -1 - head // w.call.group),
        HEADS,
    ),
    "V of the first head for the last group": (
        from_cache(v=_last_group_reads_first),
        "(?<!and )V of another head",
    ),
    "queries of the rows four before": (scored(_q_of_the_row_before), "Q of another|another row"),
    "queries averaged over a group": (scored(_mean_of_group), "Q is"),
    "half of the lanes in l": (
        weighed(_half_of_lanes),
        f"lanes merged|keys missing in|{DENOMINATOR}",
    ),
    "warps with maxima of their own": (_own_maxima, "lanes merged|merged"),
    "a partial tile of rows stored a row too far": (epilogue(_rows_late), "another row"),
    "chunks of channels turned in odd rows": (epilogue(_chunks_by_row), CHANNELS),
    "the output's scale of the head behind": (epilogue(_head_factors), "factor"),
    "a norm of rows on the output": (epilogue(_row_factors), f"factor|{DENOMINATOR}"),
    "a tenth of the query added": (epilogue(_with_query), "the query"),
    "a tenth of the newest value added": (epilogue(_with_last_value), "the value of|offset of V"),
    "rows of a partial tile of 8 not written": (
        epilogue(_tail_rows_old),
        "never written|uninitialised",
    ),
    "the log-sum-exp in the first channel": (
        epilogue(_lse_in_front),
        "channels? (?!of Q)|elements never written|uninitialised",
    ),
    "a quarter of the channels twice in q k": (scored(_chunk_for_next), "channels of Q or K"),
    "l of odd rows by the factor of even ones": (
        looped(16, _kept_rows),
        f"l rescaled|l not rescaled|{DENOMINATOR}",
    ),
}
"""Name: the bug, and a pattern that a right name for it matches."""
