"""Bugs in the loop over tiles of an online softmax, and in its two sums."""

import math

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.sixteenth.frame import (
    Step,
    finite,
    kept,
    looped,
    over,
    reading,
    stepped,
    summed,
)
from labkernels.measure.strangers.wrong import Work, keys_of, masked

TILE = 32


def _sum(t: Step):
    return t.p.sum(-1, keepdim=True)


def _loop(change, tile: int = TILE) -> Bug:
    """Return a bug in one step of o: change(step, l, o) returns o before the tile is added."""
    return looped(
        tile, lambda w, t, l, o: (l * t.by + _sum(t), change(t, l, o) + kept(w, t.p) @ t.v)
    )


def _starts_over(t: Step, l, o):
    return torch.where(t.by < 1, 0.0, o)


def _small_moves(t: Step, l, o):
    """A move of the maximum by less than 1 is left out."""
    return torch.where(t.by > math.exp(-1), o, o * t.by)


def _normalised(t: Step, l, o):
    """o was divided by l after the tile before, and is not multiplied by it again."""
    return o / torch.where(l == 0, torch.ones_like(l), l) * t.by


def _in_base_2(w: Work, t: Step, l, o):
    by = torch.where(t.m == -math.inf, 0.0, t.by ** math.log(2))
    return l * by + _sum(t), o * by + kept(w, t.p) @ t.v


def _first_sum_twice(w: Work, t: Step, l, o):
    l, o = stepped(w, t, l, o)
    return (l + _sum(t) if t.number == 0 else l), o


def _even_keys_doubled(w: Work, t: Step, l, o):
    """The last step of a sum over lanes adds a lane's own sum."""
    return l * t.by + 2 * t.p[..., ::2].sum(-1, keepdim=True), o * t.by + kept(w, t.p) @ t.v


def _last_tile_without_o(w: Work, t: Step, l, o):
    last = (w.s.shape[-1] - 1) // TILE
    return l * t.by + _sum(t), o * t.by + (0 if t.number == last else kept(w, t.p) @ t.v)


def _worst_tiles_skipped(w: Work, t: Step, l, o):
    """A tile of 16 keys whose best weight is under 1 / e of the best so far is skipped."""
    skip = t.p.amax(-1, keepdim=True) < math.exp(-1)
    after_l, after_o = stepped(w, t, l, o)
    return torch.where(skip, l * t.by, after_l), torch.where(skip, o * t.by, after_o)


def _two_warps(w: Work):
    """Two warps take tiles in turn, and their sums are added whatever their maxima."""
    o, l = 0.0, 0.0
    for warp in range(2):
        s = masked(w.s, keys_of(w) // TILE % 2 != warp)
        p = torch.exp(s - finite(s.amax(-1, keepdim=True)))
        o, l = o + kept(w, p) @ w.v, l + p.sum(-1, keepdim=True)
    return over(w, o, l)


def _from_a_table(w: Work):
    """exp2 is taken from a table of 16 numbers for each octave."""
    x = (w.s - finite(w.s.amax(-1, keepdim=True))) * math.log2(math.e)
    p = torch.exp2(torch.floor(16 * x) / 16)
    return over(w, kept(w, p) @ w.v, p.sum(-1, keepdim=True))


def _not_too_small(w: Work, p):
    """The argument of exp is clamped at -4."""
    p = torch.where(w.s == -math.inf, 0.0, p.clamp(min=math.exp(-4)))
    return kept(w, p) @ w.v, p.sum(-1, keepdim=True)


def _last_tile_of_v(w: Work, v):
    """The last tile of V was not loaded, and the buffer holds the first one."""
    key = keys_of(w)
    first = (len(key) - 1) // TILE * TILE
    return v[:, :, torch.where(key >= first, key - first, key)]


BUGS: dict[str, Bug] = {
    "o starts over at a new maximum": _loop(_starts_over),
    "o forgets small moves of the maximum": _loop(_small_moves),
    "o rescaled by the head before": _loop(lambda t, l, o: o * t.by.roll(1, 1)),
    "o normalised in each tile": _loop(_normalised),
    "o and l rescaled in powers of two": looped(TILE, _in_base_2),
    "the first tile twice in l": looped(TILE, _first_sum_twice),
    "l of even keys, doubled": looped(TILE, _even_keys_doubled),
    "the last tile not in o": looped(TILE, _last_tile_without_o),
    "tiles of small weights skipped": looped(16, _worst_tiles_skipped),
    "two warps added whatever their maxima": _two_warps,
    "exp2 from a table of 16": _from_a_table,
    "no weight under e to the -4": summed(_not_too_small),
    "the last tile of V is the first": reading(v=_last_tile_of_v),
    "l of the head before": summed(
        lambda w, p: (kept(w, p) @ w.v, p.sum(-1, keepdim=True).roll(1, 1))
    ),
}
"""By name: a function of the work that returns the wrong output."""
