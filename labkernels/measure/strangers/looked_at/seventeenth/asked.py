"""Bugs in what a call asks for besides a mask: sinks, soft caps and slopes of ALiBi."""

import math

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.inputs import Asked
from labkernels.measure.strangers.looked_at.sixteenth.frame import finite, kept, over, weights
from labkernels.measure.strangers.wrong import Work, attend, distances, masked


def _sunk(weigh) -> Bug:
    """Return a bug in a sink: weigh(work, logits, maxima) returns its share of the denominator."""

    def bug(w: Work):
        p, m = weights(w), finite(w.s.amax(-1, keepdim=True))
        share = weigh(w, w.call.sinks.double()[:, None, None], m)
        return over(w, kept(w, p) @ w.v, p.sum(-1, keepdim=True) + share)

    return bug


def _with_a_value(w: Work):
    """The sink counts as a key whose value is that of the first key."""
    p, m = weights(w), finite(w.s.amax(-1, keepdim=True))
    share = torch.exp(w.call.sinks.double()[:, None, None] - m)
    return over(w, kept(w, p) @ w.v + share * w.v[:, :, :1], p.sum(-1, keepdim=True) + share)


def _of_kv_heads(w: Work, sinks, m):
    return torch.exp(sinks[torch.arange(len(sinks)) // w.call.group] - m)


def _by_the_first_tile(w: Work, sinks, m):
    return torch.exp(sinks - finite(w.s[..., :64].amax(-1, keepdim=True)))


def _products(w: Work):
    return w.q @ w.k.mT


def _capped(cap) -> Bug:
    """Return a bug in a soft cap: cap(products, scale, cap) returns scores."""

    def bug(w: Work):
        s = cap(_products(w), w.call.scale, w.call.asked.soft_cap)
        return attend(masked(s, w.hidden), w.v, w.call.q.dtype)

    return bug


def _masked_before_the_cap(w: Work):
    """Hidden keys, whose scores are -inf, are capped like all others."""
    cap = w.call.asked.soft_cap
    s = cap * torch.tanh(masked(_products(w) * w.call.scale, w.hidden) / cap)
    return attend(s, w.v, w.call.q.dtype)


def _sloped(bias) -> Bug:
    """Return a bug in ALiBi: bias(work, slopes, distances) is taken off the scores."""

    def bug(w: Work):
        s = _products(w) * w.call.scale
        s = s - bias(w, w.call.slopes.double()[:, None, None], distances(w.s))
        return attend(masked(s, w.hidden), w.v, w.call.q.dtype)

    return bug


def _in_the_tile(w: Work, slopes, distance):
    return slopes * (31 - torch.arange(w.s.shape[-1]) % 32)


def _next_power(w: Work, slopes, distance):
    """The slopes of the next power of two heads."""
    heads = len(slopes)
    power = 2 ** math.ceil(math.log2(heads))
    return torch.exp2(-8 * torch.arange(1, heads + 1).double() / power)[:, None, None] * distance


def _from_row_0(w: Work, slopes, distance):
    """Distances count from a query's row in its chunk."""
    queries, keys = w.s.shape[-2:]
    return slopes * (torch.arange(queries)[:, None] - torch.arange(keys)).abs()


BUGS: dict[str, Bug] = {
    "a sink with the first value": _with_a_value,
    "a group's sinks by its KV head": _sunk(_of_kv_heads),
    "sinks in powers of two": _sunk(lambda w, sinks, m: torch.exp(sinks * math.log(2) - m)),
    "sinks scaled like scores": _sunk(lambda w, sinks, m: torch.exp(sinks * w.call.scale - m)),
    "sinks by the first tile's maximum": _sunk(_by_the_first_tile),
    "hidden keys capped like all others": _masked_before_the_cap,
    "a cap before the scale": _capped(lambda x, scale, cap: cap * torch.tanh(x / cap) * scale),
    "a cap without its division": _capped(lambda x, scale, cap: cap * torch.tanh(x * scale)),
    "a cap in units of log2": _capped(
        lambda x, scale, cap: cap * math.log(2) * torch.tanh(x * scale / (cap * math.log(2)))
    ),
    "slopes times the place in a tile": _sloped(_in_the_tile),
    "slopes of the next power of two heads": _sloped(_next_power),
    "distances from the row in the chunk": _sloped(_from_row_0),
    "distances of at most 32": _sloped(lambda w, slopes, distance: slopes * distance.clamp(max=32)),
}
"""By name: a function of the work that returns the wrong output."""
ASKED: dict[str, Asked] = {
    name: Asked(sinks=True)
    for name in (
        "a sink with the first value",
        "a group's sinks by its KV head",
        "sinks in powers of two",
        "sinks scaled like scores",
        "sinks by the first tile's maximum",
    )
} | {
    "hidden keys capped like all others": Asked(soft_cap=1.2),
    "a cap before the scale": Asked(soft_cap=5.0),
    "a cap without its division": Asked(soft_cap=3.0),
    "a cap in units of log2": Asked(soft_cap=2.5),
    "slopes times the place in a tile": Asked(alibi=True),
    "slopes of the next power of two heads": Asked(alibi=True),
    "distances from the row in the chunk": Asked(alibi=True),
    "distances of at most 32": Asked(alibi=True),
}
"""The options that bugs are asked for."""
