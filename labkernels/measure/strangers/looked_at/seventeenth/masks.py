"""Bugs in what a query sees: causal masks, windows, lengths and masks in bits."""

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.inputs import Asked
from labkernels.measure.strangers.looked_at.sixteenth.frame import seeing, unmasked
from labkernels.measure.strangers.wrong import Work, attend, masked, places

TILE, DRAFTS = 16, 5


def _causal(hide) -> Bug:
    """Return a bug in a causal mask: hide(work, place, key) replaces it if a call has one."""
    return seeing(lambda w: hide(w, *places(w)) if w.call.causal else w.hidden)


def _windowed(hide) -> Bug:
    """Return a bug in a window: hide(work, place, key, window_left) replaces the mask."""
    return seeing(lambda w: hide(w, *places(w), w.call.asked.window_left))


def _corner_to_corner(w: Work, place, key):
    queries, keys = w.s.shape[-2:]
    return key > (torch.arange(queries)[:, None] + 1) * keys // queries - 1


def _by_packed_row(w: Work, place, key):
    """A row of a packed group is not divided by the heads of the group."""
    queries, keys = w.s.shape[-2:]
    in_group = (torch.arange(w.q.shape[1]) % w.call.group)[:, None, None]
    return key > keys - queries + torch.arange(queries)[:, None] * w.call.group + in_group


def _skipped_of_odd_heads(w: Work):
    """Odd heads skip every third tile of 32 keys."""
    odd = torch.arange(w.q.shape[1])[:, None, None] % 2 == 1
    return attend(masked(w.s, odd & (places(w)[1] // 32 % 3 == 1)), w.v, w.call.q.dtype)


def _from_the_next_tile(w: Work, place, key, left: int):
    first = (place - left).clamp(min=0)
    return w.hidden | (key < (first + TILE - 1) // TILE * TILE)


def _drafts_alone(w: Work, place, key):
    return w.hidden | ((key >= w.s.shape[-1] - w.s.shape[-2]) & (key != place))


def _lengths(w: Work):
    """Each request is shorter by five keys than the one before."""
    ends = w.s.shape[-1] - DRAFTS * torch.arange(len(w.s))
    return attend(masked(w.s, places(w)[1] >= ends[:, None, None, None]), w.v, w.call.q.dtype)


def _bits_reversed(w: Work):
    """Each byte of a mask in bits is read from its other end; bits after the last key are 0."""
    queries, keys = w.hidden.shape
    full = torch.cat([w.hidden, torch.ones(queries, -keys % 8, dtype=torch.bool)], 1)
    return full.unflatten(1, (-1, 8)).flip(2).flatten(1)[:, :keys]


def _row_by_head(w: Work, place, key):
    """The row of the mask is the number of the head."""
    queries, keys = w.s.shape[-2:]
    return key > keys - queries + torch.arange(w.q.shape[1])[:, None, None] % queries


def _added(w: Work):
    """1 is added to the scores of keys that are seen, and 0 to those of hidden keys."""
    return attend(unmasked(w) + (~w.hidden).double(), w.v, w.call.q.dtype)


BUGS: dict[str, Bug] = {
    "tiles on the diagonal seen whole": _causal(lambda w, place, key: key // TILE > place // TILE),
    "a diagonal from corner to corner": _causal(_corner_to_corner),
    "packed rows masked without a division": _causal(_by_packed_row),
    "odd heads skip every third tile": _skipped_of_odd_heads,
    "drafts see the prompt and themselves alone": _causal(_drafts_alone),
    "lengths shorter by five for each request": _lengths,
    "bits of a mask from the other end": seeing(_bits_reversed),
    "the row of the mask is the head": _causal(_row_by_head),
    "a mask of truth values added as numbers": _added,
    "the window starts at the next tile": _windowed(_from_the_next_tile),
    "all rows take the last row's window": _windowed(
        lambda w, place, key, left: w.hidden | (key < w.s.shape[-1] - 1 - left)
    ),
    "the window to the right in place of the left": _windowed(
        lambda w, place, key, left: (key < place) | (key > place + left)
    ),
    "the window open at the right": _windowed(lambda w, place, key, left: key < place - left),
    "the first four keys outlive the window": _windowed(
        lambda w, place, key, left: w.hidden & ((key >= 4) | (key > place))
    ),
}
"""By name: a function of the work that returns the wrong output."""
ASKED: dict[str, Asked] = {
    "the window starts at the next tile": Asked(window_left=40),
    "all rows take the last row's window": Asked(window_left=60),
    "the window to the right in place of the left": Asked(window_left=20),
    "the window open at the right": Asked(window_left=24),
    "the first four keys outlive the window": Asked(window_left=30),
}
"""The windows that bugs are asked for."""
