"""Bugs inside a thread block: fragments, swizzles, stages of a pipeline, barriers, warps."""

import torch
from torch.nn.functional import pad

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.thirteenth.frame import (
    BOTH,
    K_READ,
    MERGE,
    RESCALE,
    SUM,
    V_READ,
    V,
    cast,
    of_both,
    of_k,
    of_sums,
    of_v,
    put,
    settled,
    weights,
    whole,
)
from labkernels.measure.strangers.wrong import Work, attend, keys_of

_CHANNELS = r"channels of Q or K"
_TILE_OF_P = r"weights are those of another tile|\bP (of|read)"


def _chunks(x, flipped):
    """Return x, where neighbouring chunks of 8 channels change places at some keys."""
    other = whole(x, 16, lambda y: y.unflatten(-1, (-1, 2, 8)).flip(-2).flatten(-3))
    return torch.where(flipped[:, None], other, x)


def _half_row(w: Work, v):
    return _chunks(v, (keys_of(w) ^ (keys_of(w) >> 1)) & 1 == 1)


def _later(w: Work, x, some, by: int):
    """Return x, where some keys are those `by` places further on, if there are any."""
    at, n = keys_of(w), x.shape[2]
    to = at + by
    return x[:, :, torch.where(some & (to >= 0) & (to < n), to, at)]


def _old(p, some, tile: int):
    """Return P, where some keys have the weights of the tile before, which was 0 at first."""
    return torch.where(some, pad(p, (tile, 0))[..., : p.shape[-1]], p)


def _stale(tile: int, some) -> Bug:
    def change(w: Work, p, used):
        return _old(used, some(keys_of(w)), tile) @ w.v, p.sum(-1, keepdim=True)

    return of_sums(change)


def _blocks(x, rows: int):
    """Return the last two axes in blocks [M / rows, rows, L / rows, rows], cut to whole ones."""
    m, n = (size // rows * rows for size in x.shape[-2:])
    return x[..., :m, :n].unflatten(-1, (-1, rows)).unflatten(-3, (-1, rows))


def _transposed(x, rows: int = 8):
    m, n = (size // rows * rows for size in x.shape[-2:])
    if not m or not n:
        return x
    out = x.clone()
    out[..., :m, :n] = _blocks(x, rows).transpose(-3, -1).flatten(-4, -3).flatten(-2)
    return out


def _second_eight(w: Work, k):
    at = torch.arange(k.shape[-1])
    return k[..., at - (at & 8)]


def _own_maxima(w: Work):
    """Even and odd warps of 32 keys have maxima of their own, and their sums are added."""
    odd = keys_of(w) // 32 % 2 == 1
    parts = [weights(w.s.masked_fill(hide, -torch.inf)) for hide in (odd, ~odd)]
    bad = put(w, sum(cast(w, p) @ w.v for p in parts), sum(p.sum(-1, keepdim=True) for p in parts))
    p = weights(w.s)
    return settled(w, bad, put(w, cast(w, p) @ w.v, p.sum(-1, keepdim=True)))


def _query_rows(w: Work, change):
    """Attend with other queries, each behind the mask of its own place."""
    return attend(w.scores(q=change(w.q)), w.v, w.call.q.dtype)


def _box(w: Work, x):
    n = x.shape[2]
    return torch.where((keys_of(w) >= n - n % 8)[:, None] & (n > 8), torch.zeros_like(x), x)


def _neighbour(w: Work, v):
    return torch.where((keys_of(w) % 32 >= 16)[:, None], v.roll(-w.call.group, 1), v)


WRONG: dict[str, tuple[Bug, str]] = {
    "V's swizzle follows half of the row": (of_v(_half_row), V_READ),
    "K's swizzle left out in four rows of eight": (
        of_k(lambda w, k: _chunks(k, keys_of(w) & 4 == 4)),
        rf"{K_READ}|{_CHANNELS}",
    ),
    "rows of K overwritten by the tile after the next": (
        of_k(lambda w, k: _later(w, k, keys_of(w) % 64 >= 40, 64)),
        K_READ,
    ),
    "V of the stage that is still in flight": (
        of_v(lambda w, v: _later(w, v, keys_of(w) >= 48, -48)),
        V_READ,
    ),
    "blocks of V loaded without a transpose": (
        of_v(lambda w, v: _transposed(v)),
        rf"{V_READ}|{V} (in another|transposed)",
    ),
    "blocks of P read with a transpose": (
        of_sums(lambda w, p, used: (_transposed(used) @ w.v, p.sum(-1, keepdim=True))),
        r"P (transposed|read)|weights are those of another row",
    ),
    "each product takes P of the tile before": (
        _stale(32, lambda at: at >= 0),
        rf"{_TILE_OF_P}|{V_READ}",
    ),
    "P of the fourth warp comes a tile late": (
        _stale(64, lambda at: at % 64 >= 48),
        rf"{_TILE_OF_P}|{V_READ}",
    ),
    "second half of K's fragment is the first": (of_k(_second_eight), rf"{K_READ}|{_CHANNELS}"),
    "the accumulator cleared at the second tile": (
        of_sums(lambda w, p, used: (used[..., 32:] @ w.v[:, :, 32:], p.sum(-1, keepdim=True))),
        rf"denominator with|left out in o|{V} read as 0",
    ),
    "the first product with V added twice": (
        of_sums(
            lambda w, p, used: (
                used @ w.v + used[..., :32] @ w.v[:, :, :32],
                p.sum(-1, keepdim=True),
            )
        ),
        rf"denominator with|twice in o|{V} (counted twice|by a factor)",
    ),
    "one lane of a quad left out of the sum": (
        of_sums(
            lambda w, p, used: (used @ w.v, (p * (keys_of(w) % 8 // 2 != 3)).sum(-1, keepdim=True))
        ),
        rf"{SUM}|missing in|lanes",
    ),
    "two warps with maxima of their own": (
        _own_maxima,
        rf"lanes merged|{MERGE}|{RESCALE}",
    ),
    "half of V's tile from the neighbour in the cluster": (
        of_v(_neighbour),
        rf"{V} of another head|{V_READ}",
    ),
    "a box that ends at a multiple of eight rows": (
        of_both(_box),
        rf"{BOTH} read as 0|padding|keys? at the end",
    ),
    "queries of the work item before": (
        lambda w: _query_rows(w, lambda q: q.roll(1, 0)),
        r"Q of another",
    ),
    "rows past eight hold the first eight queries": (
        lambda w: _query_rows(w, lambda q: q[:, :, torch.arange(q.shape[2]) % 8]),
        r"Q (of another|read)|another row",
    ),
}
"""Name: the bug, and a pattern that a right name for it matches."""
