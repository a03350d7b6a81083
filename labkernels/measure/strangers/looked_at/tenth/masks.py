"""Bugs of the tenth set in masks, windows, caps, sinks and ALiBi."""

import math
from collections.abc import Callable

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.inputs import Asked
from labkernels.measure.strangers.looked_at.tenth.tiles import (
    DIVISOR,
    LOST,
    SHOWN,
    TWICE,
    divided,
    shown,
    softmax_parts,
    used,
)
from labkernels.measure.strangers.wrong import (
    Work,
    attend,
    distances,
    keys_of,
    masked,
    places,
    scored,
)


def _hiding(hide: Callable) -> Callable:
    """A bug that hides more keys: hide(query places, key numbers, work)."""
    return scored(lambda w: masked(w.s, hide(*places(w), w)))


def _showing(hide: Callable) -> Callable:
    """A bug in a mask: hide(query places, key numbers, work) is all that it hides."""
    return scored(lambda w: shown(w, hide(*places(w), w)))


def _causal(hide: Callable) -> Callable:
    """A bug in a causal mask, beside a window: hide(query places, key numbers, work)."""
    return _showing(lambda query, key, w: hide(query, key, w) | (key < query - _left(w)))


def _left(w: Work) -> int:
    return w.call.asked.window_left


def _plain(w: Work):
    """The scores before a cap, without a mask."""
    return w.q @ w.k.mT * w.call.scale


def _seen(w: Work, s):
    return s.masked_fill(w.hidden, -math.inf)


def _blocks_left_out(query, key, w: Work):
    """Blocks of a sparse mask, one in three of which is missing, but for a row's own."""
    return ((query // 16 + key // 16) % 3 == 1) & (query // 16 != key // 16)


def _after_rounded_offset(query, key, w: Work):
    """Keys after a causal mask whose offset is a whole number of tiles of 16."""
    lost = (w.s.shape[-1] - w.s.shape[2]) % 16
    return (key > query - lost) & w.call.causal


def _other_length(query, key, w: Work):
    """The last quarter of the keys hidden, as by a length of another request."""
    n = w.s.shape[-1]
    return (key >= n - n // 4) & (key > 0) & (query >= 0)


def _padding_in_front(w: Work):
    """Tokens in front, taken for padding: 8 more in each request."""
    request = torch.arange(w.s.shape[0])[:, None, None, None]
    key = keys_of(w)
    hidden = (key < 8 * (request + 1)) & (key < w.s.shape[-1] - w.s.shape[2])
    return shown(w, w.hidden | hidden)


def _finite_mask(w: Work, value: float = -60.0):
    """A mask added to the products before the scale, and too small for it."""
    return torch.where(w.hidden, (w.q @ w.k.mT + value) * w.call.scale, w.s)


def _own_key_twice(w: Work):
    """A row's own key once from the cache and once from registers."""
    query, key = places(w)
    return attend(w.s, w.v, w.call.q.dtype, weights=1.0 + (key == query).double())


def _capped_last(w: Work):
    """A cap after the mask: hidden keys get the score -cap."""
    cap = w.call.asked.soft_cap
    return (cap * torch.tanh(_plain(w) / cap)).masked_fill(w.hidden, -cap)


def _capped_products(w: Work):
    """A cap on the products, and the scale after it."""
    cap = w.call.asked.soft_cap
    return _seen(w, cap * torch.tanh(w.q @ w.k.mT / cap) * w.call.scale)


def _capped_in_log2(w: Work):
    """A cap on scores in log2 units, although its size is in natural ones."""
    cap, log2_e = w.call.asked.soft_cap, math.log2(math.e)
    return _seen(w, cap * torch.tanh(_plain(w) * log2_e / cap) / log2_e)


def _capped_twice(w: Work):
    cap = w.call.asked.soft_cap
    return _seen(w, cap * torch.tanh(cap * torch.tanh(_plain(w) / cap) / cap))


def _capped_hard(w: Work):
    """A clamp for a tanh."""
    cap = w.call.asked.soft_cap
    return _seen(w, _plain(w).clamp(-cap, cap))


def _with_sinks(change: Callable) -> Callable:
    """A bug in the sinks [Hq]: change(work, sinks) returns others."""
    return lambda w: attend(w.s, w.v, w.call.q.dtype, sinks=change(w, w.call.sinks))


def _group_sinks(w: Work, sinks):
    """The sink of the KV head's number."""
    return sinks[torch.arange(len(sinks)) // w.call.group]


def _sink_per_split(w: Work, splits: int = 3):
    """A sink that each split counts, of which a merge of equal splits keeps all."""
    return torch.full_like(w.call.sinks, math.log(splits))


def _sink_with_value(w: Work):
    """A sink that the product with V counts as the first key."""
    p, l, m = softmax_parts(w)
    sink = torch.exp(w.call.sinks.double()[:, None, None] - m)
    return divided(w, used(p, w) @ w.v + sink * w.v[:, :, :1], l + sink)


def _sink_less_maximum(w: Work):
    """A sink without the row's maximum taken off."""
    p, l, _ = softmax_parts(w)
    return divided(w, used(p, w) @ w.v, l + torch.exp(w.call.sinks.double()[:, None, None]))


def _slopes(change: Callable) -> Callable:
    """A bug in ALiBi: change(work, slopes [Hq, 1, 1], distances) returns the bias."""

    def scores(w: Work):
        bias = change(w, w.call.slopes.double()[:, None, None], distances(w.s))
        return _seen(w, _plain(w) - bias)

    return scored(scores)


def _rows_of_a_tile(query, key, w: Work):
    """The mask of the last row of each tile of 4 rows."""
    row = torch.arange(w.s.shape[2])[:, None]
    last = (row // 4 * 4 + 3).clamp(max=w.s.shape[2] - 1)
    return key > query + last - row


def _window_of_a_tile(query, key, w: Work):
    """The window of the first row of each tile of 8 rows."""
    row = torch.arange(w.s.shape[2])[:, None]
    return (key > query) | (key < query - row % 8 - _left(w))


def _window_in_group_rows(query, key, w: Work):
    """A window from the number of a packed row, whose heads move it."""
    head = (torch.arange(w.s.shape[1]) % w.call.group)[:, None, None]
    return (key > query) | (key < query - _left(w) + 2 * head + 1)


def _newest_both_ways(query, key, w: Work):
    """The newest 20 tokens see each other, as tokens of a picture do."""
    return (key > query) & (query < w.s.shape[-1] - 20)


def _past_window(w: Work):
    """NaN in rows whose first tile of 32 keys lies before the window."""
    out = attend(w.s, w.v, w.call.q.dtype)
    query, _ = places(w)
    empty = (query - _left(w) >= 32)[None, None]
    return out.masked_fill(empty, math.nan)


_CAUSAL = Asked(window_left=63)  # a window makes every call causal
_WINDOW = Asked(window_left=21)
_CAP = Asked(soft_cap=1.5)
_SINKS = Asked(sinks=True)
_ALIBI = Asked(alibi=True)
_BUGS: dict[str, tuple[Bug, str, Asked | None]] = {
    "the causal mask of a tile's last row": (_causal(_rows_of_a_tile), SHOWN, _CAUSAL),
    "a causal mask of whole tiles of keys": (
        _causal(lambda query, key, w: key // 16 > query // 16),
        SHOWN,
        _CAUSAL,
    ),
    "own key lost at the start of a tile": (
        _hiding(lambda query, key, w: (key == query) & (query % 8 == 0) & (query > 0)),
        f"{LOST}|strict|another mask|a causal mask that",
        _CAUSAL,
    ),
    "an offset of queries rounded down to a tile": (
        _hiding(_after_rounded_offset),
        f"{LOST}|strict|causal mask|another mask|a mask",
        _CAUSAL,
    ),
    "blocks of a sparse mask missing": (_hiding(_blocks_left_out), f"{LOST}|mask", None),
    "the length of a shorter request": (_hiding(_other_length), LOST, None),
    "tokens in front taken for padding": (
        scored(_padding_in_front),
        f"{LOST}|window|another mask",
        None,
    ),
    "a mask of -60 before the scale": (
        scored(_finite_mask),
        SHOWN,
        Asked(window_left=13),
    ),
    "own key once more from registers": (
        _own_key_twice,
        f"{TWICE}|weights of keys|keys by a factor",
        None,
    ),
    "the newest tokens seen in both directions": (_causal(_newest_both_ways), SHOWN, _CAUSAL),
    "a window one key short": (
        _hiding(lambda query, key, w: key <= query - _left(w)),
        f"window|{LOST}",
        _WINDOW,
    ),
    "a window from the page's first key": (
        _showing(lambda query, key, w: (key > query) | (key < (query - _left(w)) // 16 * 16)),
        f"window|{SHOWN}",
        _WINDOW,
    ),
    "a window from the next page's first key": (
        _hiding(lambda query, key, w: key < (query - _left(w) + 15) // 16 * 16),
        f"window|{LOST}|another mask",
        _WINDOW,
    ),
    "the window of a tile's first row": (
        _showing(_window_of_a_tile),
        f"window|{SHOWN}",
        _WINDOW,
    ),
    "a window from the row among heads": (
        _showing(_window_in_group_rows),
        f"window|{LOST}|another mask",
        _WINDOW,
    ),
    "a window of half the length": (
        _hiding(lambda query, key, w: key < query - _left(w) // 2),
        f"window|{LOST}",
        _WINDOW,
    ),
    "a window without the offset of queries": (
        _showing(
            lambda query, key, w: (
                (key > query) | (key < query - w.s.shape[-1] + w.s.shape[2] - _left(w))
            )
        ),
        f"window|{SHOWN}",
        _WINDOW,
    ),
    "NaN where the first tile lies before the window": (_past_window, "NaN or inf", _WINDOW),
    "a cap after the mask": (
        scored(_capped_last),
        f"soft cap|{SHOWN}",
        Asked(window_left=21, soft_cap=1.5),
    ),
    "a cap on the products before the scale": (scored(_capped_products), "soft cap", _CAP),
    "a cap on scores in log2 units": (scored(_capped_in_log2), "soft cap", _CAP),
    "a cap applied twice": (scored(_capped_twice), "soft cap", _CAP),
    "a clamp for a cap": (scored(_capped_hard), "soft cap|scores clamped", _CAP),
    "sinks of the KV head's number": (_with_sinks(_group_sinks), "sink", _SINKS),
    "sinks times the scale": (
        _with_sinks(lambda w, sinks: sinks * w.call.scale),
        "sink",
        _SINKS,
    ),
    "sinks that every split counts": (
        _with_sinks(lambda w, sinks: sinks + _sink_per_split(w)),
        f"sink|{DIVISOR}",
        _SINKS,
    ),
    "sinks in log2 units": (
        _with_sinks(lambda w, sinks: sinks * math.log(2)),
        "sink",
        _SINKS,
    ),
    "a sink with the first key's value": (_sink_with_value, "sink|the value of", _SINKS),
    "a sink without the maximum taken off": (_sink_less_maximum, f"sink|{DIVISOR}", _SINKS),
    "ALiBi slopes of the next head": (
        _slopes(lambda w, slopes, far: slopes.roll(-1, 0) * far),
        "ALiBi",
        _ALIBI,
    ),
    "ALiBi in log2 units": (
        _slopes(lambda w, slopes, far: slopes * math.log(2) * far),
        "ALiBi",
        _ALIBI,
    ),
    "ALiBi by tiles of 16 keys": (
        _slopes(lambda w, slopes, far: slopes * (far // 16) * 16),
        "ALiBi",
        _ALIBI,
    ),
    "ALiBi that grows with the distance": (
        _slopes(lambda w, slopes, far: -slopes * far),
        "ALiBi",
        _ALIBI,
    ),
    "ALiBi before the scale": (
        _slopes(lambda w, slopes, far: slopes * far * w.call.scale),
        "ALiBi",
        _ALIBI,
    ),
}
WRONG: dict[str, tuple[Bug, str]] = {name: bug[:2] for name, bug in _BUGS.items()}
"""Name: the bug, and a pattern that a right name for it matches."""
ASKED: dict[str, Asked] = {name: bug[2] for name, bug in _BUGS.items() if bug[2]}
"""What a bug needs to be asked for."""
