"""Bugs of the eighth set in masks and places, and in calls with a window, a cap, sinks or ALiBi.

Name: the bug, and a pattern (re.search, case sensitive) that a truthful name for it matches.
"""

import math

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.inputs import Asked
from labkernels.measure.strangers.wrong import Work, attend, distances, masked, scored

_MASK = r"\bmask|\bhid|causal"
_LOST = r"left out|window|mask|causal"
_WINDOW = r"window"
_CAP = r"\bcap\b|capped"
_SINK = r"\bsinks?\b|in the denominator"
_ALIBI = r"ALiBi|slope|bias|distance"
_ROPE = r"RoPE|rotary|rotate|turned|position"


def _plain(w: Work):
    """Scores of all keys."""
    return w.q @ w.k.mT * w.call.scale


def _unhidden(w: Work, shown):
    """Scores in which keys of `shown` are visible, too."""
    return torch.where(shown & w.hidden, _plain(w), w.s)


def _places(w: Work):
    m, n = w.s.shape[-2:]
    return torch.arange(m)[:, None] + (n - m), torch.arange(n)


def _diagonal_tile_open(w: Work, size: int = 16):
    query, key = _places(w)
    return _unhidden(w, key // size <= query // size)


def _diagonal_tile_closed(w: Work, size: int = 16):
    query, key = _places(w)
    return masked(w.s, (key // size >= query // size) & (key >= size))


def _one_more_in_odd_heads(w: Work):
    query, key = _places(w)
    odd = torch.arange(w.s.shape[1])[:, None, None] % 2 == 1
    return _unhidden(w, odd & (key == query + 1))


def _prefix_seen_by_all(w: Work):
    _, key = _places(w)
    return _unhidden(w, (key < w.s.shape[-1] - w.s.shape[-2] + 10).expand_as(w.hidden))


def _mask_of_minus_4(w: Work):
    return torch.where(w.hidden, _plain(w) - 4.0, w.s)


def _newest_key_hidden(w: Work):
    query, key = _places(w)
    return masked(w.s, (key == query) & (query > 0))


def _turned(x, place, old: float, new: float):
    """x turned from places of one base to those of another."""
    half = x.shape[-1] // 2
    power = -torch.arange(half, dtype=torch.float64) / half
    angle = place[:, None] * (new**power - old**power)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


def _other_base(w: Work):
    query, key = _places(w)
    return w.scores(
        _turned(w.q, query[:, 0].double(), 1e4, 5e5), _turned(w.k, key.double(), 1e4, 5e5)
    )


def _keys_one_place_late(w: Work):
    half = w.k.shape[-1] // 2
    angle = 1e4 ** (-torch.arange(half, dtype=torch.float64) / half)
    a, b = w.k[..., :half], w.k[..., half:]
    k = torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)
    return w.scores(k=k)


WRONG = {
    "diagonal tile not masked": (scored(_diagonal_tile_open), _MASK),
    "diagonal tile hidden": (scored(_diagonal_tile_closed), _LOST),
    "one key too many in odd heads": (scored(_one_more_in_odd_heads), _MASK),
    "first ten new keys seen by all": (scored(_prefix_seen_by_all), _MASK),
    "mask of -4": (scored(_mask_of_minus_4), _MASK),
    "newest key not seen": (scored(_newest_key_hidden), _LOST),
    "RoPE of base 500000 for 10000": (scored(_other_base), _ROPE),
    "RoPE of keys one place late": (scored(_keys_one_place_late), _ROPE),
}
"""Name: the bug, and a pattern that a right name for it matches."""


def _window(left: int | None, *, top_left: bool = False) -> Bug:
    """Return a bug with another window than the call's, or one aligned to the row's own number."""

    def change(w: Work):
        query, key = _places(w)
        place = query - query[0] if top_left else query
        hide = torch.zeros_like(w.hidden) if left is None else key < place - left
        return masked(_plain(w), hide | (w.call.causal & (key > query)))

    return scored(change)


def _cap(w: Work, cap: float, before: float = 1.0):
    """Scores capped at another number, or before a factor is applied."""
    s = _plain(w) / before
    return masked(cap * torch.tanh(s / cap) * before, w.hidden)


def _with_sinks(w: Work, sinks):
    return attend(w.s, w.v, w.call.q.dtype, sinks=sinks)


def _by_slopes(sign: float, first: int) -> Bug:
    def change(w: Work):
        heads = w.s.shape[1]
        slopes = 2.0 ** (-8 * (torch.arange(heads, dtype=torch.float64) + first) / heads)
        s = _plain(w)
        return masked(s - sign * slopes[:, None, None] * distances(s), w.hidden)

    return scored(change)


_LEFT, _CAPPED = Asked(window_left=23), Asked(soft_cap=3.0)
_SUNK, _SLOPED = Asked(sinks=True), Asked(alibi=True)
OF_WHAT_WAS_ASKED: dict[str, tuple[Asked, Bug, str]] = {
    "window a key too long": (_LEFT, _window(24), _WINDOW + "|" + _MASK),
    "window a key too short": (_LEFT, _window(22), _WINDOW + "|left out"),
    "window not applied": (_LEFT, _window(None), _WINDOW + "|" + _MASK),
    "window by the row's own number": (_LEFT, _window(23, top_left=True), _WINDOW + "|" + _MASK),
    "soft cap forgotten": (_CAPPED, scored(lambda w: masked(_plain(w), w.hidden)), _CAP),
    "soft cap of 5 for 3": (_CAPPED, scored(lambda w: _cap(w, 5.0)), _CAP),
    "cap of the products before the scale": (
        _CAPPED,
        scored(lambda w: _cap(w, 3.0, w.call.scale)),
        _CAP,
    ),
    "sinks forgotten": (_SUNK, lambda w: _with_sinks(w, None), _SINK),
    "sinks of the next head": (_SUNK, lambda w: _with_sinks(w, w.call.sinks.roll(-1)), _SINK),
    "sinks in base 2": (_SUNK, lambda w: _with_sinks(w, w.call.sinks * math.log(2)), _SINK),
    "slopes forgotten": (_SLOPED, scored(lambda w: masked(_plain(w), w.hidden)), _ALIBI),
    "slopes of the other sign": (_SLOPED, _by_slopes(-1.0, 1), _ALIBI),
    "slopes counted from 0": (_SLOPED, _by_slopes(1.0, 0), _ALIBI),
}
"""Name of a bug: what the call asks for, the bug, and the pattern."""


def wrong_asked() -> dict[str, tuple[Bug, str]]:
    """The bugs of calls that ask for more than a causal mask."""
    return {name: (bug, pattern) for name, (_, bug, pattern) in OF_WHAT_WAS_ASKED.items()}
