"""Bugs of the loop over tiles: rescales, sums, exps, and tiles at the end."""

import math

import torch

from labkernels.measure.strangers.wrong import Work, attend, keys_of, scored
from tests.strangers.frame import (
    Step,
    finite,
    in_group,
    kept,
    looped,
    over,
    summed,
)


def _sums(w: Work, t: Step, l, o, of_l, of_o):
    """Return l and o after a tile, with rescales of their own."""
    return l * of_l + t.p.sum(-1, keepdim=True), o * of_o + kept(w, t.p) @ t.v


def _if_all_move(w: Work, t: Step, l, o):
    moves = (t.top > t.m).unflatten(1, (-1, w.call.group))
    every = moves.all(3, keepdim=True).all(2, keepdim=True).expand_as(moves).flatten(1, 2)
    by = torch.where(every | (t.m == -math.inf), t.by, torch.ones_like(t.by))
    return _sums(w, t, l, o, t.by, by)


def _turned(w: Work, t: Step, l, o):
    by = torch.where(t.by == 0, t.by, 1 / t.by.clamp(min=1e-30))
    return _sums(w, t, l, o, by, by)


def _counted(change):
    """Return a bug in the denominator: change(weights) returns those that it sums."""
    return summed(lambda w, p: (kept(w, p) @ w.v, change(p).sum(-1, keepdim=True)))


def _half_the_lanes(p):
    lane = torch.arange(p.shape[-1]) // 2
    return p * (lane % 2 == 0)


def _without_last_tile(p):
    tile = torch.arange(p.shape[-1]) // 24
    return p * ((tile < tile[-1]) | (tile == 0))


def _cut(p):
    """Return weights with two bits after the leading one; the rest is cut."""
    fraction, power = torch.frexp(p)
    return torch.ldexp(torch.floor(fraction * 8) / 8, power)


def _clipped(w: Work):
    m = w.s[..., :16].amax(-1, keepdim=True)
    p = torch.exp(w.s - finite(m)).clamp(max=1.0)
    return over(w, kept(w, p) @ w.v, p.sum(-1, keepdim=True))


def _skipped(w: Work):
    s, most = w.s.clone(), torch.full_like(w.s[..., :1], -math.inf)
    for tile in s.split(16, -1):
        top = tile.amax(-1, keepdim=True)
        tile.masked_fill_(top < most - 0.6, -math.inf)
        most = torch.maximum(most, top)
    return s


def _weights_before(w: Work, p):
    key = keys_of(w)
    before = p[..., torch.where((key // 24 % 2 == 1), key - 24, key)]
    return kept(w, before) @ w.v, p.sum(-1, keepdim=True)


def _zeros_behind(w: Work, p):
    m = finite(w.s.amax(-1, keepdim=True))
    behind = -w.s.shape[3] % 64
    return kept(w, p) @ w.v, p.sum(-1, keepdim=True) + behind * torch.exp(-m)


def _runs_on(w: Work):
    """The last tile of 32 has keys of the next request behind those of its own."""
    first = torch.arange(-w.s.shape[3] % 32) % w.s.shape[3]
    k, v = (x.roll(-1, 0)[:, :, first] for x in (w.k, w.v))
    s = torch.cat([w.s, w.q @ k.mT * w.call.scale], -1)
    return attend(s, torch.cat([w.v, v], 2), w.call.q.dtype)


def _next_sum(w: Work, p):
    l = p.sum(-1, keepdim=True)
    return kept(w, p) @ w.v, in_group(w, l, torch.arange(1, w.call.group + 1) % w.call.group)


def _first_twice(w: Work):
    return attend(w.s, w.v, w.call.q.dtype, weights=1.0 + (keys_of(w) < 32))


BUGS = {
    "a rescale only if all rows of a group move": looped(16, _if_all_move),
    "the rescale turned over": looped(32, _turned),
    "a denominator from half of the lanes": _counted(_half_the_lanes),
    "a denominator without the last tile": _counted(_without_last_tile),
    "a denominator of weights cut to two bits": _counted(_cut),
    "the next head's denominator": summed(_next_sum),
    "weights over the first tile's maximum clipped": _clipped,
    "tiles a little below the maximum skipped": scored(_skipped),
    "odd tiles take the weights before": summed(_weights_before),
    "the first 32 keys in the prologue and the loop": _first_twice,
    "zeros behind the last key up to 64": summed(_zeros_behind),
    "the last tile runs into the next request": _runs_on,
}
