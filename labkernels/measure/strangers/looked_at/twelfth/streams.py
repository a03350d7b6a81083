"""Bugs in the loop over tiles: maxima, rescales, lanes, stages, races, exponentials."""

import math

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.twelfth.frame import (
    LOST,
    SUM,
    TWICE,
    V_READ,
    cast,
    put,
    shift,
    walked,
)
from labkernels.measure.strangers.wrong import Work, attend, keys_of, masked, read, scored, valued

_TILE = 32


def _weighted(change) -> Bug:
    """Return a bug in the weights: change(x) of exponents in log2 units returns them."""

    def bug(w: Work):
        x = (w.s - shift(w.s.amax(-1, keepdim=True))) * math.log2(math.e)
        p = change(x.clamp(min=-1e3)).masked_fill(w.s == -math.inf, 0.0)
        return put(w, cast(w, p) @ w.v, p.sum(-1, keepdim=True))

    return bug


def _lane(w: Work):
    """Return the lane of each key: four lanes hold pairs of each eight."""
    return keys_of(w) % 8 // 2


def _maxima_of_lanes(w: Work):
    """Each lane subtracts the maximum of its own keys; the sums take no notice."""
    high = torch.zeros_like(w.s)
    for lane in range(4):
        mine = _lane(w) == lane
        high = torch.where(mine, masked(w.s, ~mine).amax(-1, keepdim=True), high)
    factor = torch.exp(shift(w.s.amax(-1, keepdim=True)) - shift(high))
    return attend(w.s, w.v, w.call.q.dtype, weights=factor.masked_fill(w.s == -math.inf, 0.0))


def _sum_without_last(t):
    if t.i == t.end - 1 and t.i:
        t.l = t.l - t.p.sum(-1, keepdim=True)


def _half_of_the_channels(t):
    t.keep_o = t.keep_o.repeat(1, 1, 1, t.v.shape[-1])
    t.keep_o[..., t.v.shape[-1] // 2 :] = (t.old > -math.inf).double()


def _twice_in_odd_tiles(t):
    if t.i % 2:
        t.keep_o = t.keep_o**2


def _sum_first(t):
    factor = torch.where(t.old == -math.inf, torch.ones_like(t.keep_l), t.keep_l)
    t.l = (t.was + t.p.sum(-1, keepdim=True)) * factor


def _forget(t):
    if t.i and t.i % 3 == 0:
        none = t.s.amax(-1, keepdim=True) == -math.inf
        t.old = torch.where(none, t.old, torch.full_like(t.old, -math.inf))


def _forgotten(t):
    if t.i and t.i % 3 == 0:
        t.keep_o = t.keep_l = torch.ones_like(t.keep_o)


def _old_weights(t):
    """In odd tiles the weights that meet V are still those of the tile before."""
    own = t.used
    if t.i % 2:
        t.used = t.before[..., : own.shape[-1]]
    t.before = own


def _small_moves(t, both: bool):
    small = (t.m - t.old < 0.8) & (t.old > -math.inf)
    t.keep_l = torch.where(small, torch.ones_like(t.keep_l), t.keep_l)
    t.keep_o = t.keep_l if both else t.keep_o


def _base_two(t):
    t.keep_o = t.keep_l = torch.exp2(t.old - shift(t.m))


def _dirty(t):
    """The accumulator begins with what the head before left there: its first tile."""
    if t.i == 0:
        t.o = t.o + (t.used @ t.v).roll(1, 1)


def _first_maximum(w: Work):
    m = shift(w.s[..., :_TILE].amax(-1, keepdim=True))
    return attend((w.s - m).clamp(max=0.0), w.v, w.call.q.dtype)


def _late_rows(w: Work):
    """Rows 2 and 3 of four multiply the tile of V that was there before."""
    key = keys_of(w)
    late = attend(w.s, read(w.v, torch.where(key < _TILE, key, key - _TILE)), w.call.q.dtype)
    row = torch.arange(w.s.shape[2])[:, None]
    return torch.where(row % 4 > 1, late, attend(w.s, w.v, w.call.q.dtype))


def _lost_channels(w: Work):
    v = w.v.clone()
    v[:, :, 2 * _TILE : 3 * _TILE, 8:16] = 0
    return v


def _filled_up(w: Work):
    """The last tile is filled up with the first keys, which nothing hides."""
    n = w.s.shape[-1]
    more = torch.arange(-n % _TILE) % n
    s = torch.cat([w.s, (w.q @ w.k[:, :, more].mT) * w.call.scale], -1)
    return attend(s, torch.cat([w.v, w.v[:, :, more]], 2), w.call.q.dtype)


def _even_tiles(w: Work):
    n = w.s.shape[-1]
    count = -(-n // _TILE)
    odd = count % 2 == 1 and count > 1
    return masked(w.s, (keys_of(w) >= (count - 1) * _TILE) & odd)


def _v_of_the_last_but_one(w: Work):
    key, n = keys_of(w), w.s.shape[-1]
    first = (n - 1) // _TILE * _TILE
    return read(w.v, torch.where((key >= first) & (first > 0), key - _TILE, key))


_BOTH = "o and l|splits|factor for each"
WRONG: dict[str, tuple[Bug, str]] = {
    "each of four lanes with a maximum of its own": (
        _maxima_of_lanes,
        "lanes|weights (?:of|are)|keys by a factor|splits|factor for each",
    ),
    "denominator without the last tile": (walked(_TILE, after=_sum_without_last), SUM),
    "o rescaled in half of its channels": (
        walked(_TILE, during=_half_of_the_channels),
        r"\bo (?:not )?rescaled|channels",
    ),
    "o rescaled twice in odd tiles": (
        walked(_TILE, during=_twice_in_odd_tiles),
        r"\bo (?:not )?rescaled",
    ),
    "l rescaled after its sum": (walked(_TILE, after=_sum_first), SUM),
    "maximum forgotten at every third tile": (
        walked(_TILE, before=_forget, during=_forgotten),
        f"{_BOTH}|maxim",
    ),
    "maximum of the first tile, and no exponent above 0": (_first_maximum, "clamped"),
    "weights of the tile before in odd tiles": (
        walked(_TILE, during=_old_weights),
        rf"weights are|\bP (?:of|read|is)|{V_READ}",
    ),
    "no rescale after small rises of the maximum": (
        walked(_TILE, during=lambda t: _small_moves(t, both=True)),
        f"small moves|{_BOTH}",
    ),
    "small rises of the maximum leave l alone": (
        walked(_TILE, during=lambda t: _small_moves(t, both=False)),
        f"small moves|{SUM}",
    ),
    "o and l rescaled in base 2": (walked(_TILE, during=_base_two), f"log base|{_BOTH}"),
    "exponents cut to eighths": (
        _weighted(lambda x: torch.exp2(torch.floor(8 * x) / 8)),
        "scores (?:rounded|have)|exp2|exponents|weights are",
    ),
    "exp2 as a straight line between powers": (
        _weighted(lambda x: torch.exp2(x.floor()) * (1 + x - x.floor())),
        "exp2",
    ),
    "weights below a sixteenth dropped": (
        _weighted(lambda x: torch.exp2(x) * (x >= -4)),
        "small weights|weights of keys dropped",
    ),
    "rows 2 and 3 of four read V a tile late": (_late_rows, f"{V_READ}|stale"),
    "eight channels of the third tile lost": (
        valued(_lost_channels),
        f"{V_READ}|channels",
    ),
    "o begins with the first tile of another head": (
        walked(_TILE, after=_dirty),
        r"(?<![KV] )of another head|the output of|another row|stale|uninitialised|never written",
    ),
    "last tile filled up with the first keys": (
        _filled_up,
        f"{TWICE}|past the end|padding|hidden",
    ),
    "an odd last tile skipped": (scored(_even_tiles), f"{LOST}|mask that ends"),
    "V of the last tile is that of the one before": (
        valued(_v_of_the_last_but_one),
        f"{V_READ}|stale",
    ),
}
"""Name: the bug, and a pattern that a right name for it matches."""
