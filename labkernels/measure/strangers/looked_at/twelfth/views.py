"""Bugs in which keys a row sees: diagonals, whole tiles, windows, padding, packed rows."""

from collections.abc import Callable

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.inputs import Asked
from labkernels.measure.strangers.looked_at.twelfth.frame import LOST, MASK, cast, put, raw, weights
from labkernels.measure.strangers.wrong import Work, masked, places, scored

_CAP = 2.0


def _rows(w: Work):
    """Return the numbers of the queries [M, 1], and the place of the first one."""
    m, n = w.s.shape[-2:]
    return torch.arange(m)[:, None], n - m


def _shown(rule: Callable) -> Bug:
    """Return a bug of a causal mask: rule(w, place, key) is True where it hides a key."""

    def scores(w: Work):
        return masked(raw(w), rule(w, *places(w))) if w.call.causal else w.s

    return scored(scores)


def _hidden_too(rule: Callable) -> Bug:
    """Return a bug that hides more keys than the mask, where rule(w, place, key) is True."""
    return scored(lambda w: masked(w.s, rule(w, *places(w))))


def _by_place(change: Callable) -> Bug:
    """Return a bug in the place of each row: change(w, row, first place) gives it; key 0 stays."""

    def rule(w: Work, place, key):
        return (key > change(w, *_rows(w))) & (key > 0)

    return _shown(rule)


def _windowed(begin: Callable) -> Bug:
    """Return a bug in a window's first key: begin(w, row, first place, keys to the left)."""
    return _shown(lambda w, place, key: (key > place) | (key < begin(w, *_rows(w), _left(w))))


def _corners(w: Work, place, key, rows: int = 8, keys: int = 16):
    """Tiles that the diagonal crosses compare numbers within the tile."""
    row, first = _rows(w)
    low, end = row // rows * rows + first, key // keys * keys
    whole, gone = end + keys - 1 <= low, end > low + rows - 1
    return gone | (~whole & (key % keys > row % rows))


def _packed(w: Work, place, key):
    """Rows that hold the heads of a group are masked by their number in the tile."""
    row, first = _rows(w)
    head = torch.arange(w.s.shape[1])[:, None, None] % w.call.group
    return key > first + row * w.call.group + head


def _whole_tiles(w: Work, place, key, size: int = 32):
    """Return True for the keys after the last whole tile of 32, if there is one."""
    seen = place + 1 if w.call.causal else torch.full_like(place, w.s.shape[-1])
    return (key >= seen // size * size) & (seen >= size)


def _left(w: Work) -> int:
    return w.call.asked.window_left or 0


def _but_for_four(w: Work, place, key):
    """Keys before the window are hidden, but the first four are not."""
    return (key > place) | ((key < place - _left(w)) & (key >= 4))


def _last_window(w: Work, row, first, left: int):
    last = (row // 16 * 16 + 15).clamp(max=len(row) - 1)
    return last + first - left


def _before_the_scale(w: Work):
    finite = raw(w) - 20 * w.call.scale
    return torch.where(w.hidden, finite, w.s)


def _capped_padding(w: Work, tile: int = 64):
    """Keys that fill up the last tile are capped after they were masked, and count as -cap."""
    padding = -w.s.shape[-1] % tile * torch.exp(-_CAP - w.s.amax(-1, keepdim=True))
    p = weights(w)
    return put(w, cast(w, p) @ w.v, p.sum(-1, keepdim=True) + padding)


def _to_row_tile(w: Work, row, first, size: int = 16):
    return row + first - (-len(row) % size)


_FEWER = f"{MASK}|{LOST}"
_WINDOW = rf"window(?! left out)|{MASK}"
WRONG: dict[str, tuple[Bug, str]] = {
    "tiles at the diagonal masked from their own corner": (_shown(_corners), _FEWER),
    "packed rows of a group masked by their number": (_shown(_packed), MASK),
    "rows do not see the two newest keys": (
        _by_place(lambda w, row, first: row + first - 2),
        _FEWER,
    ),
    "tiles of 16 at the diagonal taken as whole": (
        _shown(lambda w, place, key: key // 16 > place // 16),
        MASK,
    ),
    "whole tiles of 32 alone are seen": (_hidden_too(_whole_tiles), _FEWER),
    "sixteen rows with the window of the first": (
        _windowed(lambda w, row, first, left: row // 16 * 16 + first - left),
        _WINDOW,
    ),
    "sixteen rows with the window of the last": (_windowed(_last_window), f"{_WINDOW}|{LOST}"),
    "a window begins at its first whole tile": (
        _windowed(lambda w, row, first, left: (row + first - left).clamp(min=0).add(31) // 32 * 32),
        f"{_WINDOW}|{LOST}",
    ),
    "first four keys seen through the window": (_shown(_but_for_four), _WINDOW),
    "no right side of a window": (
        _shown(lambda w, place, key: key < place - _left(w)),
        "window|mask|hidden",
    ),
    "one of five diagonals of tiles skipped": (
        _hidden_too(lambda w, place, key: (_rows(w)[0] // 16 + key // 16) % 5 == 4),
        _FEWER,
    ),
    "a finite mask added before the scale": (scored(_before_the_scale), "mask|hidden|bias"),
    "rows at the places of a tile padded to 16": (_by_place(_to_row_tile), _FEWER),
    "two rows at each step of the diagonal": (
        _by_place(lambda w, row, first: row // 2 + first),
        _FEWER,
    ),
    "the last 16 keys seen by all rows": (
        _shown(lambda w, place, key: (key > place) & (key < (w.s.shape[-1] - 1) // 16 * 16)),
        "mask|hidden",
    ),
    "padding capped after it was masked": (
        _capped_padding,
        "padding|denominator|hidden|past the end|soft cap that",
    ),
    "each third row without its mask": (
        _shown(lambda w, place, key: (key > place) & (_rows(w)[0] % 3 != 1)),
        "mask|hidden",
    ),
}
"""Name: the bug, and a pattern that a right name for it matches."""
ASKED: dict[str, Asked] = {
    "sixteen rows with the window of the first": Asked(window_left=45),
    "sixteen rows with the window of the last": Asked(window_left=37),
    "a window begins at its first whole tile": Asked(window_left=70),
    "first four keys seen through the window": Asked(window_left=30),
    "no right side of a window": Asked(window_left=50),
    "padding capped after it was masked": Asked(soft_cap=_CAP),
}
"""The options that a bug needs."""
