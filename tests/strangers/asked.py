"""Bugs of what a row sees and of what a call asks for: masks, sinks, caps, ALiBi, windows."""

import math
from dataclasses import replace

import torch

from labkernels.measure.strangers.inputs import Asked
from labkernels.measure.strangers.wrong import Work, attend, distances, masked, places
from tests.strangers.frame import finite, kept, over, seeing, unmasked, weights


def _bare(w: Work):
    """Return the scores without what a call asks for besides its mask."""
    return replace(w, call=replace(w.call, asked=Asked())).scores()


def _sunk(logits):
    """Return a bug in sinks: logits(work, sinks [Hq, 1, 1]) returns what the rows add."""

    def bug(w: Work):
        m, p = w.s.amax(-1, keepdim=True), weights(w)
        added = torch.exp(logits(w, w.call.sinks.double()[:, None, None]) - m)
        return over(w, kept(w, p) @ w.v, p.sum(-1, keepdim=True) + added)

    return bug


def _first_of_kv_heads(w: Work, x):
    """Return for each query head the number at its KV head's index."""
    return x[torch.arange(w.s.shape[1]) // w.call.group]


def _capped(change):
    """Return a bug in a soft cap: change(scores, cap) returns the scores."""
    return lambda w: attend(change(_bare(w), w.call.asked.soft_cap), w.v, w.call.q.dtype)


def _sloped(change):
    """Return a bug in ALiBi: change(work, slopes, distances) returns what the scores lose."""

    def bug(w: Work):
        s = _bare(w)
        lost = change(w, w.call.slopes.double()[:, None, None], distances(s))
        return attend(s - lost, w.v, w.call.q.dtype)

    return bug


def _cap_over_alibi(w: Work):
    cap, slopes = w.call.asked.soft_cap, w.call.slopes.double()[:, None, None]
    s = _bare(w)
    s = cap * torch.tanh((s - slopes * distances(s)) / cap)
    return attend(masked(s, w.hidden), w.v, w.call.q.dtype)


def _windowed(hide):
    """Return a bug in a window: hide(work, place, key, left) is True where a key is left out."""
    return seeing(lambda w: w.hidden if w.call.asked.window_left is None else _hidden(w, hide))


def _hidden(w: Work, hide):
    at, key = places(w)
    return (key > at) | hide(w, at, key, w.call.asked.window_left)


def _row_of_tile(at):
    return torch.arange(len(at))[:, None] % 16


def _odd_heads(w: Work):
    return (torch.arange(w.s.shape[1]) % 2 == 1)[:, None, None]


def _hiding(change):
    """Return a change of scores that leaves hidden keys hidden."""
    return lambda s, cap: change(s, cap).masked_fill(s == -math.inf, -math.inf)


_SINKS = {
    "sinks by the KV head's number": _sunk(_first_of_kv_heads),
    "the second rank takes the first one's sinks": _sunk(
        lambda w, x: x[torch.arange(len(x)) % max(1, len(x) // 2)]
    ),
    "the sink in the kernel and in the join": _sunk(lambda w, x: x + math.log(2)),
    "l starts at one under the first tile's maximum": _sunk(
        lambda w, x: w.s[..., :16].amax(-1, keepdim=True)
    ),
    "sinks with their sign turned": _sunk(lambda w, x: -x),
}


_CAPS = {
    "the cap after the factor log2 e": _capped(
        _hiding(lambda s, cap: cap * math.log(2) * torch.tanh(s / math.log(2) / cap))
    ),
    "a cap by a sigmoid": _capped(_hiding(lambda s, cap: cap * (2 * torch.sigmoid(s / cap) - 1))),
    "a cap that cuts": _capped(_hiding(lambda s, cap: s.clamp(-cap, cap))),
}
_SLOPES = {
    "slopes by the KV head's number": _sloped(
        lambda w, slopes, far: _first_of_kv_heads(w, slopes) * far
    ),
    "slopes of twice as many heads": _sloped(lambda w, slopes, far: slopes**0.5 * far),
    "distances anew after 48 keys": _sloped(
        lambda w, slopes, far: slopes * torch.remainder(far, 48)
    ),
    "ALiBi by the log of the distance": _sloped(
        lambda w, slopes, far: slopes * far.sign() * torch.log1p(far.abs())
    ),
}
_WINDOWS = {
    "a window that begins with its tile": _windowed(
        lambda w, at, key, left: key < (at - left) // 16 * 16
    ),
    "a window of the tile's first row": _windowed(
        lambda w, at, key, left: key < at - _row_of_tile(at) - left
    ),
    "odd heads without the window": _windowed(
        lambda w, at, key, left: (key < at - left) & ~_odd_heads(w)
    ),
    "four first keys stay in the window": _windowed(
        lambda w, at, key, left: (key < at - left) & (key >= 4)
    ),
    "a window halved for two sides": _windowed(lambda w, at, key, left: key < at - left // 2),
}


def _causal(hide):
    """Return a bug in a causal mask: hide(work, place, key) is True where a key is hidden."""
    return seeing(lambda w: hide(w, *places(w)) if w.call.causal else w.hidden)


def _row(w: Work):
    return torch.arange(w.s.shape[2])[:, None]


def _short(size: int, whole: int) -> int:
    """Return how much a size lacks to a multiple of a whole number."""
    return -size % whole


def _chunk(w: Work) -> int:
    """Return the place of the first query."""
    return w.s.shape[3] - w.s.shape[2]


def _padded_stride(w: Work, at, key):
    keys = w.s.shape[3]
    flat = w.hidden.flatten()
    return flat[(_row(w) * (keys + _short(keys, 8)) + key) % len(flat)]


def _packed_by_head(w: Work, at, key):
    """A row of a group is number g M + i of its tile, which is taken for i group + g."""
    group, queries = w.call.group, w.s.shape[2]
    g = (torch.arange(w.s.shape[1]) % group)[:, None, None]
    return key > (g * queries + _row(w)) // group + _chunk(w)


def _image(w: Work, at, key):
    first, last = _chunk(w), _chunk(w) + w.s.shape[2] // 2
    inside = (key >= first) & (key < last) & (at < last)
    return (key > at) & ~inside


def _in_denominator(w: Work):
    s, p = unmasked(w), weights(w)
    l = torch.exp(s - finite(w.s.amax(-1, keepdim=True))).sum(-1, keepdim=True)
    return over(w, kept(w, p) @ w.v, l)


_MASKS = {
    "diagonal tiles of 16 without a mask": _causal(lambda w, at, key: key // 16 > at // 16),
    "the diagonal tile of 8 left out": _causal(lambda w, at, key: key >= at // 8 * 8),
    "places from queries padded to 16": _causal(
        lambda w, at, key: key > at - _short(w.s.shape[2], 16)
    ),
    "drafted tokens see only the prompt and themselves": _causal(
        lambda w, at, key: (key >= _chunk(w)) & (key != at)
    ),
    "the chunk's mask transposed": _causal(lambda w, at, key: (key >= _chunk(w)) & (key < at)),
    "mask rows at a padded stride": _causal(_padded_stride),
    "packed rows masked as token by token": _causal(_packed_by_head),
    "a sparse pattern of every eighth key": _causal(
        lambda w, at, key: (key > at) | ((key < at - 24) & (key % 8 != 0))
    ),
    "rows masked as the first of their eight": _causal(lambda w, at, key: key > at - _row(w) % 8),
    "an image's tokens see each other": _causal(_image),
    "hidden keys lowered by one": lambda w: attend(
        unmasked(w) - 1.0 * w.hidden, w.v, w.call.q.dtype
    ),
    "hidden keys in the denominator alone": _in_denominator,
}
_BOTH = {"the cap over ALiBi": _cap_over_alibi}
BUGS = _SINKS | _CAPS | _SLOPES | _WINDOWS | _BOTH | _MASKS
ASKED = (
    dict.fromkeys(_SINKS, Asked(sinks=True))
    | dict.fromkeys(_CAPS, Asked(soft_cap=2.0))
    | dict.fromkeys(_SLOPES, Asked(alibi=True))
    | dict.fromkeys(_WINDOWS, Asked(window_left=30))
    | dict.fromkeys(_BOTH, Asked(soft_cap=2.0, alibi=True))
)
