"""Bugs of the sixteenth set in the loop over tiles: rescales, lanes, buffers and races."""

import math
from collections.abc import Callable

import torch

from labkernels.measure.strangers.looked_at.sixteenth import frame
from labkernels.measure.strangers.wrong import Work, attend, keys_of, scored


def _half_of_o(w: Work, t: frame.Step, l, o):
    """Rescale the first half of o's channels alone."""
    first = torch.arange(o.shape[-1]) < (o.shape[-1] + 1) // 2
    by = torch.where(first | (t.m == -math.inf), t.by, 1.0)
    return l * t.by + t.p.sum(-1, keepdim=True), o * by + frame.kept(w, t.p) @ t.v


def _small_rescales_skipped(w: Work, t: frame.Step, l, o):
    """Rescale o where the maximum has risen by more than one unit."""
    by = torch.where((t.by < math.exp(-1)) | (t.m == -math.inf), t.by, 1.0)
    return l * t.by + t.p.sum(-1, keepdim=True), o * by + frame.kept(w, t.p) @ t.v


def _rescale_of_another_head(w: Work, t: frame.Step, l, o):
    """Rescale o by the factor of the next head of the group."""
    group = w.call.group
    by = frame.in_group(w, t.by, [(g + 1) % group for g in range(group)])
    return l * t.by + t.p.sum(-1, keepdim=True), o * by + frame.kept(w, t.p) @ t.v


def _own_halves(w: Work, t: frame.Step, l, o):
    """Add to l two halves of a tile, each relative to a maximum of its own."""
    total = l * t.by
    for p in t.p.split(16, -1):
        top = p.amax(-1, keepdim=True)
        total = total + p.sum(-1, keepdim=True) / torch.where(top == 0, 1.0, top)
    return total, o * t.by + frame.kept(w, t.p) @ t.v


def _tiles_skipped(w: Work, t: frame.Step, l, o):
    """Skip a tile whose largest weight is below a half."""
    p = torch.where(t.p.amax(-1, keepdim=True) < 0.5, 0.0, t.p)
    return l * t.by + p.sum(-1, keepdim=True), o * t.by + frame.kept(w, p) @ t.v


def _sum_in_16_bits(w: Work, t: frame.Step, l, o):
    """Keep l in bf16 from tile to tile."""
    l, o = frame.stepped(w, t, l, o)
    return l.bfloat16().double(), o


def _pairs_of_lanes(w: Work):
    """Take weights relative to the maximum of two of the four lanes that share a row."""
    pair = keys_of(w) % 4 // 2
    s = w.s.clone()
    for lanes in range(2):
        some = torch.where(pair == lanes, w.s, -math.inf).amax(-1, keepdim=True)
        s = torch.where(pair == lanes, w.s - frame.finite(some), s)
    return s


def _lanes_of_l(w: Work, p):
    """Divide the channels of a lane by a sum over two lanes of four, times two."""
    lane = keys_of(w) // 2 % 4
    channel = torch.arange(w.v.shape[-1]) // 2 % 4
    pair = lane[:, None] // 2 == channel // 2
    return frame.kept(w, p) @ w.v, 2 * (p @ pair.double())


def _begun_at_one(w: Work, p):
    """Begin l at 1 and the maximum at 0."""
    m = frame.finite(w.s.amax(-1, keepdim=True))
    return frame.kept(w, p) @ w.v, p.sum(-1, keepdim=True) + torch.exp(-m)


def _left_over(w: Work, p):
    """Begin o with what the head before has left in the accumulator."""
    o = frame.kept(w, p) @ w.v
    return o + o.roll(1, 1), p.sum(-1, keepdim=True)


def _left_in_l(w: Work, p):
    """Begin l with what the request before has left in it."""
    l = p.sum(-1, keepdim=True)
    return frame.kept(w, p) @ w.v, l + l.roll(1, 0)


def _last_tile_again(w: Work, tile: int = 48):
    n = w.s.shape[-1]
    first = (n - 1) // tile * tile
    index = torch.cat([keys_of(w), torch.arange(first, n)])
    return attend(w.s[..., index], w.v[:, :, index], w.call.q.dtype)


def _ring_of_stages(w: Work, x, tile: int = 16, stages: int = 3):
    """Read the second half of a tile before the copy has replaced the one three tiles ago."""
    old = keys_of(w) - tile * stages
    late = (keys_of(w) % tile >= tile // 2) & (old >= 0)
    return x[:, :, torch.where(late, old, keys_of(w))]


def _not_arrived(keys: Callable) -> Callable:
    return lambda w, x: frame.keys_where(x, keys(keys_of(w)), torch.zeros_like(x))


BUGS: dict[str, Callable] = {
    "half of o's channels not rescaled": frame.looped(32, _half_of_o),
    "small rescales of o skipped": frame.looped(16, _small_rescales_skipped),
    "the rescale of the next head": frame.looped(32, _rescale_of_another_head),
    "halves of l with maxima of their own": frame.looped(32, _own_halves),
    "tiles with weights below a half skipped": frame.looped(16, _tiles_skipped),
    "l is bf16 between tiles": frame.looped(16, _sum_in_16_bits),
    "maxima of two lanes of four": scored(_pairs_of_lanes),
    "l of two lanes of four": frame.summed(_lanes_of_l),
    "l begun at 1, the maximum at 0": frame.summed(_begun_at_one),
    "o begun with the head before": frame.summed(_left_over),
    "l begun with the request before": frame.summed(_left_in_l),
    "the last tile of 48 a second time": _last_tile_again,
    "half of K's tile three stages old": frame.reading(k=_ring_of_stages),
    "K's last 8 rows of a tile of 32 not arrived": frame.reading(
        k=_not_arrived(lambda key: key % 32 >= 24)
    ),
    "V's first tile not arrived": frame.reading(v=_not_arrived(lambda key: key < 24)),
    "every third tile of 24 claimed by nobody": frame.seeing(
        lambda w: w.hidden | (keys_of(w) // 24 % 3 == 1)
    ),
}
"""Name: the bug."""
