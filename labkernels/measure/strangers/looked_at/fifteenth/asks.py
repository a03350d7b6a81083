"""Bugs of what a call asks for: masks, lengths, windows, soft caps, slopes and sinks."""

import math

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.inputs import Asked
from labkernels.measure.strangers.looked_at.fifteenth.frame import (
    TILE,
    attended,
    divided,
    finite,
    heads,
    kept,
    keys,
    scoring,
    showing,
    spans,
)
from labkernels.measure.strangers.wrong import Work, distances, masked, places

LEFT, CAP = 37, 6.0


def _strictly(w: Work):
    row, key = places(w)
    return w.hidden | (key >= row) if w.call.causal or len(row) == 1 else w.hidden


def _by_padded_length(w: Work):
    row, key = places(w)
    return w.hidden & (key > row + -w.k.shape[2] % TILE)


def _by_packed_row(w: Work):
    """The number of a packed row is taken modulo the queries, where a group divides it."""
    m, n = w.hidden.shape
    packed = torch.arange(m)[:, None] * w.call.group + heads(w) % w.call.group
    return w.hidden.any() & (keys(w) > packed % m + n - m)


def _draft_transposed(w: Work):
    row, key = places(w)
    m, n = w.hidden.shape
    own = key >= n - m
    return torch.where(own & w.hidden.any(), key < row, w.hidden)


def _bits_from_the_other_end(w: Work):
    seen = ~w.hidden.flatten()
    rest = torch.zeros(-len(seen) % 8, dtype=torch.bool)
    swapped = torch.cat([seen, rest]).reshape(-1, 8).flip(1).flatten()
    return ~swapped[: len(seen)].reshape(w.hidden.shape)


def _shards_by_local_numbers(w: Work, ranks: int = 4):
    """Ranks hold every fourth key, and the mask takes a key's place in the gathered cache."""
    order = torch.cat([keys(w)[r::ranks] for r in range(ranks)])
    hidden = w.hidden.clone()
    hidden[:, order] = w.hidden
    return hidden


def _ring_as_if_own(w: Work):
    row, key = places(w)
    size = max(1, w.k.shape[2] // 4)
    earlier = key // size < row // size
    return w.hidden | (w.hidden.any() & earlier & (key % size > row % size))


def _window_of_the_last_row(w: Work):
    row, key = places(w)
    i = torch.arange(len(row))[:, None]
    last = ((i // 16) * 16 + 15).clamp(max=len(row) - 1) - i
    return w.hidden | (key < row + last - LEFT)


def _window(far):
    """A causal window whose left end, far(row, number of the row), is wrong."""

    def hide(w: Work):
        row, key = places(w)
        return (key > row) | (key < far(row, torch.arange(len(row))[:, None]))

    return hide


def _first_tile_skipped(w: Work):
    """The loop begins at the first tile that lies whole inside the window of the block's rows."""
    row, key = places(w)
    first = row[torch.arange(len(row)) // 16 * 16] - LEFT
    return w.hidden | (key < -(-first.clamp(min=0) // 16) * 16)


def _products(w: Work):
    return w.q @ w.k.mT


def _cheap_cap(w: Work):
    s = _products(w) * w.call.scale
    return masked(s / (1 + s.abs() / CAP), w.hidden)


def _sloped(slopes, away=distances):
    """Scores with slopes(work) [Hq] and distances away(scores) of their own."""

    def change(w: Work):
        s = _products(w) * w.call.scale
        return masked(s - slopes(w).double()[:, None, None] * away(s), w.hidden)

    return change


def _slopes_of_a_power_of_two(w: Work):
    n = w.q.shape[1]
    whole = 2 ** (n - 1).bit_length()
    return torch.exp2(-8 * torch.arange(1, n + 1, dtype=torch.float64) / whole)


def _from_the_chunk(s):
    m, n = s.shape[-2:]
    return (torch.arange(m)[:, None] - torch.arange(n)).abs().double()


def _sink_by_the_first_split(w: Work):
    m = finite(w.s.amax(-1, keepdim=True))
    first = finite(w.s[..., spans(w)[0]].amax(-1, keepdim=True))
    p = torch.exp(w.s - m)
    sink = torch.exp(w.call.sinks.double()[:, None, None] - first)
    return divided(w, kept(w, p) @ w.v, p.sum(-1, keepdim=True) + sink)


_WINDOW, _CAP = Asked(window_left=LEFT), Asked(soft_cap=CAP)
_ALIBI, _SINKS = Asked(alibi=True), Asked(sinks=True)

BUGS: dict[str, Bug] = {
    "the diagonal tile whole": showing(
        lambda w: w.hidden & (places(w)[1] // TILE > places(w)[0] // TILE)
    ),
    "own key hidden": showing(_strictly),
    "diagonal by the padded length": showing(_by_padded_length),
    "places of packed rows modulo the queries": showing(_by_packed_row),
    "mask among drafts transposed": showing(_draft_transposed),
    "bits of the mask from the other end": showing(_bits_from_the_other_end),
    "sharded keys masked by their places in the shards": showing(_shards_by_local_numbers),
    "ring masks earlier chunks like its own": showing(_ring_as_if_own),
    "newest key not yet in the length": showing(lambda w: w.hidden | (keys(w) == len(keys(w)) - 1)),
    "window ends where the tile's last row has it": showing(_window_of_the_last_row),
    "window on both sides added up": showing(_window(lambda row, i: row - 2 * LEFT)),
    "window of one key more": showing(_window(lambda row, i: row - LEFT - 1)),
    "window counted from the chunk's rows": showing(_window(lambda row, i: i - LEFT)),
    "window's first tile skipped": showing(_first_tile_skipped),
    "cap by a quotient": scoring(_cheap_cap),
    "slopes of the next power of two": scoring(_sloped(_slopes_of_a_power_of_two)),
    "slopes by places in the chunk": scoring(_sloped(lambda w: w.call.slopes, _from_the_chunk)),
    "sink in each of four splits": lambda w: attended(w, w.s, sinks=w.call.sinks + math.log(4)),
    "sink by the first split's maximum": _sink_by_the_first_split,
}
"""Name: the bug."""
ASKED: dict[str, Asked] = {
    **{name: _WINDOW for name in BUGS if name.startswith("window")},
    **{name: _CAP for name in BUGS if name.startswith("cap")},
    **{name: _ALIBI for name in BUGS if name.startswith("slopes")},
    **{name: _SINKS for name in BUGS if name.startswith("sink")},
}
"""What a bug needs to be asked for."""
