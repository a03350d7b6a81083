"""Bugs of the sixth set, each with a pattern that a right name for it matches.

`bugs_of_keys` has those of pages, tiles and masks.
"""

import math

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.sixth.bugs_of_keys import KEYS
from labkernels.measure.strangers.wrong import (
    Work,
    keys_of,
    merged,
    parts,
    places,
    scored,
    stored,
    valued,
)

_BIAS = "bias|ALiBi|position"
_ROPE = "RoPE|rotation"
_SHAPE = "weights|exp|function|clamp|cap"


def _weighed(w: Work, function):
    """Return the output with weights that are another function of the scores."""
    p = function(w.s).masked_fill(w.s == -math.inf, 0.0)
    return (p @ w.v / p.sum(-1, keepdim=True).clamp(min=1e-30)).to(w.call.q.dtype)


def _heads_of(w: Work):
    return torch.arange(w.s.shape[1], dtype=torch.float64)[:, None, None]


def _buckets(w: Work):
    """A bias for each power of 2 of the distance, another for each head."""
    query, key = places(w)
    bucket = torch.log2((query - key).abs().double() + 1).floor()
    return w.s + 0.3 * torch.sin(bucket * 2.1 + _heads_of(w))


def _later_keys_less_their_mean(w: Work):
    late = (keys_of(w) >= w.k.shape[2] // 2)[:, None]
    return w.scores(k=torch.where(late, w.k - w.k.mean(2, keepdim=True) - 0.3, w.k))


def _turn(x, place, base: float = 1e4):
    half = x.shape[-1] // 2
    angle = place[..., None] * base ** (-torch.arange(half, dtype=torch.float64) / half)
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


def _turned_by_the_row_of_the_batch(w: Work):
    first = torch.arange(w.q.shape[0], dtype=torch.float64)[:, None, None] * 5 + 3
    return w.scores(q=_turn(w.q, first.expand(w.q.shape[:3])))


def _second_half_turned_by_half_places(w: Work):
    half = w.q.shape[-1] // 2

    def turned(x, first):
        place = -0.5 * (torch.arange(x.shape[2], dtype=torch.float64) + first)
        return torch.cat([x[..., :half], _turn(x[..., half:], place.expand(x.shape[:3]))], -1)

    return w.scores(turned(w.q, w.k.shape[2] - w.q.shape[2]), turned(w.k, 0))


def _one_l_for_a_group(w: Work):
    m = w.s.unflatten(1, (-1, w.call.group)).amax((2, 4), keepdim=True)
    m = m.expand(-1, -1, w.call.group, -1, -1).flatten(1, 2)
    p = torch.exp(w.s - m)
    l = p.sum(-1, keepdim=True)
    l = l.unflatten(1, (-1, w.call.group)).mean(2, keepdim=True)
    return (p @ w.v / l.expand(-1, -1, w.call.group, -1, -1).flatten(1, 2)).to(w.call.q.dtype)


def _second_half_of_l_twice(w: Work):
    p = torch.exp(w.s - w.s.amax(-1, keepdim=True))
    more = 1 + (keys_of(w) >= w.k.shape[2] // 2).double()
    return (p @ w.v / (p * more).sum(-1, keepdim=True)).to(w.call.q.dtype)


def _at_least(m, l):
    lse = m + l.clamp(min=1e-300).log()
    return torch.exp(lse - torch.logsumexp(lse, 0)).clamp(min=0.08)


def _of_the_other_head(m, l):
    lse = (m + l.clamp(min=1e-300).log()).roll(1, 2)
    return torch.exp(lse - lse.amax(0))


def _last_split_has_the_first_o(w: Work, keys: int = 48):
    m, l, o = parts(w, keys)
    part = torch.where(l > 0, o / l.clamp(min=1e-300), torch.zeros_like(o))
    part[-1] = part[0]
    weights = torch.exp(m - m.amax(0)) * l
    return ((weights * part).sum(0) / weights.sum(0)).to(w.call.q.dtype)


def _in_blocks_of_channels(x, size: int, most: float, step_of):
    grouped = x.unflatten(-1, (-1, math.gcd(size, x.shape[-1])))
    step = grouped.abs().amax(-1, keepdim=True).clamp(min=1e-30) / most
    return (step_of(grouped / step) * step).flatten(-2)


def _e2m1(x):
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    nearest = (x.abs()[..., None] - values).abs().argmin(-1)
    return values[nearest] * x.sign()


def _p_in_bytes_by_tile(w: Work, size: int = 64):
    p = torch.exp(w.s - w.s.amax(-1, keepdim=True))
    used = p.clone()
    for first in range(0, p.shape[-1], size):
        tile = p[..., first : first + size]
        step = tile.amax(-1, keepdim=True).clamp(min=1e-30) / 127
        used[..., first : first + size] = torch.round(tile / step) * step
    return (used @ w.v / p.sum(-1, keepdim=True)).to(w.call.q.dtype)


def _rows_twice(out):
    n = out.shape[2]
    return out[:, :, torch.arange(n) // 2]


def _heads_by_member(w: Work, out):
    n, group = out.shape[1], w.call.group
    head = torch.arange(n)
    return out[:, head % group * (n // group) + head // group]


def _blended(out):
    x = out.double()
    return (0.9 * x + 0.1 * x.roll(1, 1)).to(out.dtype)


def _half_gated(out):
    half = out.shape[-1] // 2
    return torch.cat([(out[..., :half].double() * 0.7).to(out.dtype), out[..., half:]], -1)


def _fours(out):
    return out.unflatten(-1, (-1, 4))[..., [2, 3, 0, 1]].flatten(-2)


def _last_channels_are_the_first(out):
    out = out.clone()
    out[..., -5:] = out[..., :1]
    return out


_OTHER: dict[str, tuple[Bug, str]] = {
    "a third of the scale": (scored(lambda w: w.s / 3), "scale"),
    "a temperature for each head": (scored(lambda w: w.s * (0.8 + 0.07 * _heads_of(w))), "scale"),
    "scale by the query's place": (
        scored(lambda w: w.s * torch.log(places(w)[0] + 2.0) / math.log(64)),
        "scale",
    ),
    "buckets of distances by head": (scored(_buckets), _BIAS + "|each (key|distance)"),
    "first key favoured by 2": (
        scored(lambda w: w.s + 2.0 * (keys_of(w) == 0)),
        _BIAS + "|key",
    ),
    "scores clipped at 2": (scored(lambda w: w.s.clamp(max=2.0)), "clamp|" + _SHAPE),
    "cap of 20 by a quotient": (
        scored(lambda w: torch.where(w.s > -math.inf, w.s / (1 + w.s.abs() / 20), w.s)),
        _SHAPE,
    ),
    "relu for exp": (lambda w: _weighed(w, lambda s: s.clamp(min=0.0)), _SHAPE + "|dropped"),
    "sigmoid for exp": (lambda w: _weighed(w, torch.sigmoid), _SHAPE),
    "later keys less their mean": (scored(_later_keys_less_their_mean), "K |key"),
    "queries turned by the row of the batch": (scored(_turned_by_the_row_of_the_batch), _ROPE),
    "second half of the channels turned back": (
        scored(_second_half_turned_by_half_places),
        _ROPE,
    ),
    "q clipped at 2": (scored(lambda w: w.scores(q=w.q.clamp(-2, 2))), "[qQ] |quer|clip|clamp"),
    "K clipped at 1.5": (scored(lambda w: w.scores(k=w.k.clamp(-1.5, 1.5))), "K |clip|clamp"),
    "V clipped at 1.5": (valued(lambda w: w.v.clamp(-1.5, 1.5)), "V |clip|clamp"),
    "sign of a channel of K lost": (
        scored(
            lambda w: w.scores(k=torch.cat([w.k[..., :9], w.k[..., 9:10].abs(), w.k[..., 10:]], -1))
        ),
        "channel",
    ),
    "one l for a group": (_one_l_for_a_group, "denominator|factor"),
    "second half of l twice": (_second_half_of_l_twice, "denominator|twice in"),
    "weights of splits of at least 0.08": (merged(40, _at_least), "merge|weighted|split"),
    "lse of the head before": (merged(64, _of_the_other_head), "merge|weighted|lse|split"),
    "last split has the first one's o": (
        _last_split_has_the_first_o,
        "split|V read|V of|merge",
    ),
    "rows written twice": (stored(lambda w, out: _rows_twice(out)), "another row|quer"),
    "heads by member of the group": (stored(_heads_by_member), "another row|heads|of another head"),
    "a tenth of the head before": (
        stored(lambda w, out: _blended(out)),
        "added|sum|mean|average|output of",
    ),
    "first channels gated by 0.7": (stored(lambda w, out: _half_gated(out)), "factor|channels"),
    "halves of each four channels exchanged": (stored(lambda w, out: _fours(out)), "channels"),
    "last five channels are the first": (
        stored(lambda w, out: _last_channels_are_the_first(out)),
        "channels",
    ),
    "output in steps of 1 / 64": (
        stored(lambda w, out: (torch.round(out.double() * 64) / 64).to(out.dtype)),
        "rounded|steps",
    ),
    "mean with the request before": (
        stored(lambda w, out: ((out.double() + out.double().roll(1, 0)) / 2).to(out.dtype)),
        "added|sum|mean|average|output of",
    ),
    "K in int8 by 32 channels of a token": (
        scored(lambda w: w.scores(k=_in_blocks_of_channels(w.k, 32, 127, torch.round))),
        "K in|K .*int8",
    ),
    "V in e2m1 by 16 channels of a token": (
        valued(lambda w: _in_blocks_of_channels(w.v, 16, 6, _e2m1)),
        "V in|V .*(e2m1|4 bits)",
    ),
    "P in bytes by tile of 64": (
        _p_in_bytes_by_tile,
        "P in|P .*(int8|bits|steps)|rounded to steps",
    ),
    "upper channels of V one key off": (
        valued(lambda w: torch.cat([w.v.chunk(2, -1)[0], w.v.roll(1, 2).chunk(2, -1)[1]], -1)),
        "V |channels|offset",
    ),
    "q of even heads halved": (
        scored(lambda w: w.scores(q=w.q * (1 - 0.5 * (_heads_of(w) % 2 == 0)))),
        "scale",
    ),
    "newest key negated": (
        scored(lambda w: w.scores(k=torch.cat([w.k[:, :, :-1], -w.k[:, :, -1:]], 2))),
        "key|K ",
    ),
    "V by the number of its request": (
        valued(lambda w: w.v * (1 + torch.arange(w.v.shape[0])[:, None, None, None])),
        "factor|common mode|scale",
    ),
}
WRONG: dict[str, tuple[Bug, str]] = KEYS | _OTHER
"""Name: the bug, and a pattern that a right name for it matches."""
