"""Bugs of masks, windows, soft caps, slopes and sinks."""

import math

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.inputs import Asked
from labkernels.measure.strangers.looked_at.thirteenth.frame import (
    CAUSAL,
    LOST,
    MASK,
    cast,
    put,
    raw,
    unmasked,
    weights,
)
from labkernels.measure.strangers.wrong import Work, attend, distances, keys_of, places, scored

_LOG2_E = math.log2(math.e)
_WINDOW, _CAP, _SLOPES, _SINKS = r"window", r"soft cap|capped", r"ALiBi|slopes|bias", r"sink"
_WINDOWED = Asked(window_left=21)
_CAPPED, _SLOPED, _SUNK = Asked(soft_cap=2.0), Asked(alibi=True), Asked(sinks=True)


def _seen(sees) -> Bug:
    """Return a bug in the mask: sees(work, places of queries, keys) says which keys a row sees."""

    def change(w: Work):
        query, key = places(w)
        hide = ~(sees(w, query, key) & (key >= 0))
        hide[:, 0] &= ~hide.all(-1)
        return unmasked(w).masked_fill(hide, -math.inf)

    return scored(change)


def _causal(sees) -> Bug:
    """Return a bug in the mask of a causal call; other calls are right."""

    def both(w: Work, query, key):
        return sees(w, query, key) if w.call.causal else ~w.hidden

    return _seen(both)


def _first(w: Work, query):
    """Return the first key that a window shows each query."""
    return query - w.call.asked.window_left


def _windowed(first) -> Bug:
    """Return a bug in the first key that rows see: first(work, places) of the rows returns it."""
    return _seen(lambda w, query, key: (key <= query) & (key >= first(w, query)))


def _tile_of_rows(w: Work, query, rows: int):
    """Return the place of the first query in each query's tile."""
    new = torch.arange(len(query))[:, None]
    return query - new + new // rows * rows


def _new(w: Work, query, key):
    """Return the numbers of queries and keys among the new tokens."""
    before = w.s.shape[-1] - w.s.shape[-2]
    return query - before, key - before


def _from_the_other_end(w: Work, query, key):
    """Bits of new tokens are read from the highest one down."""
    row, new = _new(w, query, key)
    return (new < 0) | (new >= len(query) - 1 - row)


def _packed(w: Work):
    """The limit of a row counts rows of packed heads in place of queries."""
    query, key = places(w)
    head = torch.arange(w.s.shape[1])[:, None, None] % w.call.group
    row = (query - query[0]) * w.call.group + head
    return unmasked(w).masked_fill((key > query[0] + row) & w.call.causal, -math.inf)


def _capped(change) -> Bug:
    """Return a bug in capped scores: change(work, scores before the cap, cap) returns them."""
    return scored(
        lambda w: change(w, raw(w), w.call.asked.soft_cap).masked_fill(w.hidden, -math.inf)
    )


def _cap_but_the_tail(w: Work, s, cap):
    tail = keys_of(w) >= s.shape[-1] // 32 * 32
    return torch.where(tail, s, cap * torch.tanh(s / cap))


def _padding_capped(w: Work):
    """Scores of a tile's padding are minus infinity before the cap, and minus the cap behind it."""
    p = weights(w.s)
    m = w.s.amax(-1, keepdim=True)
    padding = -w.s.shape[-1] % 112
    extra = padding * torch.exp(-w.call.asked.soft_cap - m)
    return put(w, cast(w, p) @ w.v, p.sum(-1, keepdim=True) + extra)


def _sloped(change) -> Bug:
    """Return a bug in the slopes: change(work, slopes [Hq, 1, 1], distances) returns a bias."""

    def scores(w: Work):
        bias = change(w, w.call.slopes.double()[:, None, None], distances(w.s))
        return (raw(w) - bias).masked_fill(w.hidden, -math.inf)

    return scored(scores)


def _slopes_of_kv_heads(w: Work, slopes, distance):
    kv = torch.arange(len(slopes)) // w.call.group
    few = len(slopes) // w.call.group
    return torch.exp2(-8 * (kv + 1.0) / few).double()[:, None, None] * distance


def _from_its_tile(w: Work, slopes, distance):
    return slopes * (distance + keys_of(w) % 16)


def _biased(w: Work):
    """Return a bias that falls by the log of the distance, which no call asks for."""
    query, key = places(w)
    return w.s - 0.25 * torch.log2(1.0 + (query - key).abs())


def _sunk(change) -> Bug:
    """Return a bug in the sinks: change(work, logits [Hq]) returns other ones."""
    return lambda w: attend(w.s, w.v, w.call.q.dtype, sinks=change(w, w.call.sinks.double()))


def _sink_of_first_tile(w: Work):
    """The sink's weight relates to the first tile's maximum, and no later one rescales it."""
    p, m = weights(w.s), w.s[..., :32].amax(-1, keepdim=True)
    sink = torch.exp(w.call.sinks.double()[:, None, None] - m)
    return put(w, cast(w, p) @ w.v, p.sum(-1, keepdim=True) + sink)


_BY_WINDOW: dict[str, tuple[Bug, str]] = {
    "a window that counts the row itself apart": (
        _windowed(lambda w, query: _first(w, query) - 1),
        rf"{_WINDOW}|{MASK}",
    ),
    "a window from the start of its first tile": (
        _windowed(lambda w, query: _first(w, query) // 16 * 16),
        rf"{_WINDOW}|{MASK}",
    ),
    "a window whose first tile is skipped": (
        _windowed(lambda w, query: -(-_first(w, query) // 16) * 16),
        rf"{_WINDOW}|{MASK}|{LOST}",
    ),
    "four first keys that stay in the window": (
        _seen(lambda w, query, key: (key <= query) & ((key >= _first(w, query)) | (key < 4))),
        rf"{_WINDOW}|{MASK}",
    ),
    "a window of the first row of its tile": (
        _windowed(lambda w, query: _first(w, _tile_of_rows(w, query, 8))),
        rf"{_WINDOW}|{MASK}",
    ),
}
_BY_CAP: dict[str, tuple[Bug, str]] = {
    "products capped before their scale": (
        _capped(lambda w, s, cap: cap * torch.tanh(s / w.call.scale / cap) * w.call.scale),
        _CAP,
    ),
    "a cap of scores in log2 units": (
        _capped(lambda w, s, cap: cap * torch.tanh(s * _LOG2_E / cap) / _LOG2_E),
        _CAP,
    ),
    "no cap in the last tile": (_capped(_cap_but_the_tail), _CAP),
    "a cap that is a quotient": (
        _capped(lambda w, s, cap: s / (1 + s.abs() / cap)),
        _CAP,
    ),
    "padding that the cap brings back": (
        _padding_capped,
        rf"{_CAP}|denominator|padding|past the end|hidden keys|sink",
    ),
}
_BY_SLOPES: dict[str, tuple[Bug, str]] = {
    "slopes by the number of KV heads": (_sloped(_slopes_of_kv_heads), _SLOPES),
    "slopes from the first key of a tile": (_sloped(_from_its_tile), _SLOPES),
    "slopes times the scale of scores": (
        _sloped(lambda w, slopes, distance: slopes * w.call.scale * distance),
        _SLOPES,
    ),
}
_BY_SINKS: dict[str, tuple[Bug, str]] = {
    "a sink that four splits count": (_sunk(lambda w, sinks: sinks + math.log(4)), _SINKS),
    "sinks turned into log2 units twice": (_sunk(lambda w, sinks: sinks * _LOG2_E), _SINKS),
    "sinks of the heads of another rank": (
        _sunk(lambda w, sinks: sinks.roll(len(sinks) // 2)),
        _SINKS,
    ),
    "a sink that no later maximum rescales": (_sink_of_first_tile, rf"{_SINKS}|denominator"),
}
WRONG: dict[str, tuple[Bug, str]] = (
    _BY_WINDOW
    | _BY_CAP
    | _BY_SLOPES
    | _BY_SINKS
    | {
        "tiles on the diagonal not masked": (
            _causal(lambda w, query, key: key <= _tile_of_rows(w, query, 8) + 7),
            CAUSAL,
        ),
        "a limit by the number of the packed row": (scored(_packed), CAUSAL),
        "bits of a tree's mask from the other end": (_causal(_from_the_other_end), CAUSAL),
        "a diagonal of the padded length": (
            _causal(lambda w, query, key: key <= query + -w.s.shape[-1] % 16),
            CAUSAL,
        ),
        "a bias by the log of the distance": (scored(_biased), _SLOPES),
    }
)
"""Name: the bug, and a pattern that a right name for it matches."""
ASKED: dict[str, Asked] = (
    dict.fromkeys(_BY_WINDOW, _WINDOWED)
    | dict.fromkeys(_BY_CAP, _CAPPED)
    | dict.fromkeys(_BY_SLOPES, _SLOPED)
    | dict.fromkeys(_BY_SINKS, _SUNK)
)
"""What a bug needs to be asked for."""
