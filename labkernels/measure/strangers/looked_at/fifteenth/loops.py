"""Bugs of the loop over tiles: stages, rescales, barriers, warps' reductions, persistent blocks."""

import math

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.fifteenth.frame import (
    TILE,
    Tile,
    attended,
    divided,
    finite,
    heads,
    kept,
    keys,
    looped,
    packed,
    reading,
    scoring,
    stepped,
    summed,
    unpacked,
)
from labkernels.measure.strangers.wrong import Work


def _value_stage(w: Work, tile: Tile, l, o, before):
    """Every third tile multiplies what lay in its stage two tiles before."""
    v = before[-2].v[:, :, : tile.v.shape[2]] if tile.number % 3 == 2 else tile.v
    return (
        l * tile.rescale + tile.p.sum(-1, keepdim=True),
        o * tile.rescale + kept(w, tile.p) @ v,
    )


def _prefetch_past_the_end(w: Work, x):
    first = (x.shape[2] // TILE - 1) * TILE
    j = keys(w)
    late = (j >= first) & (j < first + TILE) & (first > 0)
    return x[:, :, torch.where(late, j - first, j)]


def _sum_rescaled_twice(w: Work, tile: Tile, l, o, before):
    return stepped(w, tile, l * tile.rescale, o)[0], stepped(w, tile, l, o)[1]


def _rescale_of_the_next_row(w: Work, tile: Tile, l, o, before):
    rows = packed(w, tile.rescale)
    other = unpacked(w, rows.roll(-1, 2))
    return stepped(w, tile, l, o)[0], o * other + kept(w, tile.p) @ tile.v


def _vote_of_one_row(w: Work, tile: Tile, l, o, before):
    """The first of 8 rows decides whether o is rescaled; all of them move their maxima."""
    rows = packed(w, tile.rescale)
    first = rows[:, :, torch.arange(rows.shape[2]) // 8 * 8]
    moved = unpacked(w, torch.where((first < 1) | (rows == 0), rows, torch.ones_like(rows)))
    return stepped(w, tile, l, o)[0], o * moved + kept(w, tile.p) @ tile.v


def _old_keys_behind_the_end(w: Work):
    n = w.k.shape[2]
    rest, tiles = n % TILE, -(-n // TILE)
    if rest == 0 or tiles < 3:
        return attended(w, w.s)
    old = torch.arange((tiles - 3) * TILE + rest, (tiles - 2) * TILE)
    return attended(w, torch.cat([w.s, w.s[..., old]], -1), torch.cat([w.v, w.v[:, :, old]], 2))


def _sums_of_warps(w: Work):
    """Two warps have a half of each tile; o is joined by their maxima, and l is just added."""
    odd = keys(w) // 16 % 2 == 1
    m = finite(w.s.amax(-1, keepdim=True))
    parts = [w.s.masked_fill(other, -math.inf) for other in (odd, ~odd)]
    sums = [torch.exp(s - finite(s.amax(-1, keepdim=True))).sum(-1, keepdim=True) for s in parts]
    return divided(w, kept(w, torch.exp(w.s - m)) @ w.v, sums[0] + sums[1])


def _maxima_of_lanes(w: Work):
    """Lanes of a row keep two maxima, since one step of their exchange is left out."""
    low = keys(w) % 8 < 4
    one, other = (w.s.masked_fill(~some, -math.inf).amax(-1, keepdim=True) for some in (low, ~low))
    p = torch.exp(w.s - torch.where(low, finite(one), finite(other)))
    return divided(w, kept(w, p) @ w.v, p.sum(-1, keepdim=True))


def _sum_of_half_the_lanes(w: Work, p):
    return kept(w, p) @ w.v, (p * (keys(w) % 8 < 4)).sum(-1, keepdim=True)


def _sum_without_the_last_tile(w: Work, p):
    n = w.k.shape[2]
    whole = (n - 1) // TILE * TILE if n > TILE else n
    return kept(w, p) @ w.v, p[..., :whole].sum(-1, keepdim=True)


def _o_of_the_head_before(w: Work, p):
    o = kept(w, p) @ w.v
    before = torch.where(heads(w) > 0, o.roll(1, 1), torch.zeros_like(o))
    return o + before, p.sum(-1, keepdim=True)


def _weights_of_the_tile_before(w: Work, tile: Tile, l, o, before):
    """In every fourth tile the product begins before the new weights are stored."""
    p = tile.p
    if tile.number % 4 == 3:
        p = before[-1].p[..., : tile.p.shape[-1]]
    return stepped(w, tile, l, o)[0], o * tile.rescale + kept(w, p) @ tile.v


def _multicast(w: Work, x):
    """In odd tiles the second block of a cluster has the keys of the first."""
    g = w.call.group
    h = heads(w).flatten()
    other = torch.where(h // g % 2 == 1, h - g, h)
    return torch.where((keys(w) // TILE % 2 == 1)[:, None], x[:, other], x)


def _columns_of_the_next_tile(w: Work):
    j = keys(w)
    late = (j % TILE >= TILE - 4) & (j + TILE < len(j))
    return w.s[..., torch.where(late, j + TILE, j)]


def _tiles_skipped_too_soon(w: Work, tile: Tile, l, o, before):
    """A row skips a tile whose maximum lies a half below that of its tiles before."""
    small = tile.s.amax(-1, keepdim=True) < tile.m - 0.5
    p = tile.p.masked_fill(small, 0.0)
    return (
        l * tile.rescale + p.sum(-1, keepdim=True),
        o * tile.rescale + kept(w, p) @ tile.v,
    )


def _scores_of_two_steps(w: Work):
    """The accumulator of S is not cleared: odd tiles add to the scores of the tile before."""
    j = keys(w)
    odd = (j // 16 % 2 == 1).to(w.s.dtype)
    before = finite(w.s[..., (j - 16).clamp(min=0)])
    return w.s + odd * before


BUGS: dict[str, Bug] = {
    "V's stage read too early": looped(16, _value_stage),
    "last tile overwritten by a prefetch": reading(_prefetch_past_the_end),
    "l rescaled twice at a new maximum": looped(TILE, _sum_rescaled_twice),
    "o rescaled by the next row's factor": looped(TILE, _rescale_of_the_next_row),
    "a vote of one row on the rescale of 8": looped(TILE, _vote_of_one_row),
    "old keys behind the end of the last tile": _old_keys_behind_the_end,
    "sums of two warps with maxima of their own": _sums_of_warps,
    "a step left out of the maximum's butterfly": _maxima_of_lanes,
    "a step left out of the sum's butterfly": summed(_sum_of_half_the_lanes),
    "last tile missing in l": summed(_sum_without_the_last_tile),
    "o begins with that of the head before": summed(_o_of_the_head_before),
    "weights of the tile before in every fourth product": looped(16, _weights_of_the_tile_before),
    "multicast of odd tiles from the first block": reading(_multicast),
    "last columns of a tile's scores from the next": scoring(_columns_of_the_next_tile),
    "tiles skipped too soon": looped(16, _tiles_skipped_too_soon),
    "scores added to those of the tile before": scoring(_scores_of_two_steps),
}
"""Name: the bug."""
