"""Bugs of the sixth set in pages, tiles and masks."""

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.wrong import (
    Work,
    attend,
    keys_of,
    keys_read,
    masked,
    places,
    read,
    scored,
    valued,
)

_LOST = "left out|read as 0|window|dropped"
_MASK = "mask|hidden|hides|causal|left out"
_READ = "key|page|block"


def _plain(w: Work, hide):
    return masked(w.q @ w.k.mT * w.call.scale, hide)


def _first_page_of_the_request_before(w: Work, size: int = 16):
    k, v = w.k.clone(), w.v.clone()
    k[:, :, :size] = w.k.roll(1, 0)[:, :, -size:]
    v[:, :, :size] = w.v.roll(1, 0)[:, :, -size:]
    return attend(w.scores(k=k), v, w.call.q.dtype)


def _tables_exchanged_from_page_3(w: Work, first: int = 48):
    late = (keys_of(w) >= first)[:, None]
    k, v = (torch.where(late, x.roll(1, 0), x) for x in (w.k, w.v))
    return attend(w.scores(k=k), v, w.call.q.dtype)


def _pages_by_columns(w: Work, size: int = 16):
    n = w.k.shape[2] // size
    index, rows = keys_of(w), n // 2
    page = torch.arange(rows * 2).reshape(rows, 2).T.flatten()
    index[: rows * 2 * size] = (page[:, None] * size + torch.arange(size)).flatten()
    return index


def _even_rows_then_odd(w: Work, size: int = 8):
    index = keys_of(w)
    n = len(index) // size * size
    place = index[:n] % size
    index[:n] = index[:n] - place + torch.where(place < size // 2, 2 * place, 2 * place - size + 1)
    return index


def _tile_ahead_in_the_second_half(w: Work, size: int = 32):
    index = keys_of(w)
    late = (index >= len(index) // 2) & (index + size < len(index))
    return read(w.v, torch.where(late, index + size, index))


def _newest_in_the_first_slot(w: Work):
    index = keys_of(w)
    index[0] = len(index) - 1
    return index


def _first_tile_of_odd_heads(w: Work):
    heads = torch.arange(w.k.shape[1])[:, None, None] // w.call.group % 2 == 1
    return w.scores(k=w.k.masked_fill(heads & (keys_of(w) < 16)[:, None], 0.0))


def _pooled_far_keys(w: Work, size: int = 8, near: int = 40):
    n = max(0, (w.k.shape[2] - near) // size * size)

    def pooled(x):
        if not n:
            return x
        mean = x[:, :, :n].unflatten(2, (-1, size)).mean(3).repeat_interleave(size, 2)
        return torch.cat([mean, x[:, :, n:]], 2)

    return attend(w.scores(k=pooled(w.k)), pooled(w.v), w.call.q.dtype)


def _small_keys_evicted(w: Work):
    size = w.k.norm(dim=-1)
    least = size.kthvalue(max(1, size.shape[-1] // 4), -1, keepdim=True).values
    return masked(w.s, (size <= least)[:, :, None])


def _window_in_tiles(w: Work, tile: int = 8, window: int = 20):
    query, key = places(w)
    return masked(w.s, (query - window) // tile > key // tile)


def _hashed(w: Work):
    query, key = places(w)
    return masked(w.s, ((key * 7 + query * 3) % 11 < 2) & (key > 0))


def _prefix_seen_by_all(w: Work):
    query, key = places(w)
    return _plain(w, (key > query) & (key >= 12)) if w.call.causal else w.s


def _later_heads_see_all(w: Work):
    heads = torch.arange(w.s.shape[1])[:, None, None] >= w.s.shape[1] // 2
    return torch.where(heads, w.q @ w.k.mT * w.call.scale, w.s) if w.call.causal else w.s


def _last_three_see_each_other(w: Work):
    query, key = places(w)
    late = query >= w.k.shape[2] - 3
    return _plain(w, (key > query) & ~late) if w.call.causal else w.s


def _documents_of_37(w: Work):
    query, key = places(w)
    return masked(w.s, query // 37 != key // 37)


def _dropped_for_all_heads(w: Work):
    lost = torch.rand(w.s.shape[2:], generator=torch.Generator().manual_seed(9)) < 0.1
    return masked(w.s, lost & (places(w)[1] > 0))


KEYS: dict[str, tuple[Bug, str]] = {
    "first page of the request before": (_first_page_of_the_request_before, "request|" + _READ),
    "tables exchanged from page 3 on": (_tables_exchanged_from_page_3, "request"),
    "pages by columns": (keys_read(_pages_by_columns), _READ + "|order"),
    "even rows of 8, then odd ones, in V": (
        valued(lambda w: read(w.v, _even_rows_then_odd(w))),
        "V .*(order|key|block)",
    ),
    "V a tile ahead in the second half": (
        valued(_tile_ahead_in_the_second_half),
        "V .*(order|offset|key|page|tile|block|read)",
    ),
    "newest key in the first slot": (keys_read(_newest_in_the_first_slot), _READ),
    "first tile of odd heads zero in K": (scored(_first_tile_of_odd_heads), "K .*read as 0"),
    "far keys pooled by 8": (_pooled_far_keys, "mean|pool|average"),
    "keys of small norm evicted": (scored(_small_keys_evicted), _LOST),
    "window of 20 in tiles of 8": (scored(_window_in_tiles), _LOST + "|" + _MASK),
    "mask by a hash": (scored(_hashed), _LOST + "|" + _MASK),
    "prefix of 12 seen by all": (scored(_prefix_seen_by_all), _MASK),
    "later heads see all": (scored(_later_heads_see_all), _MASK),
    "last three queries see each other": (scored(_last_three_see_each_other), _MASK),
    "documents of 37 keys": (scored(_documents_of_37), _LOST + "|" + _MASK),
    "dropout alike in all heads": (scored(_dropped_for_all_heads), _LOST + "|dropout"),
}
"""Name: the bug, and a pattern that a right name for it matches."""
