"""Bugs in what is read of a cache: pages, slots, buffers of tiles, and choices of keys."""

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.sixteenth.frame import (
    both,
    for_queries,
    from_pages,
    keys_where,
    of_kv_heads,
    of_request,
    pages,
    reading,
)
from labkernels.measure.strangers.wrong import Work, attend, keys_of, keys_read, masked

PAGE, TILE = 16, 32


def _and_for_modulo(w: Work):
    """The place in a page of 24 keys is taken by a bit mask, as if 24 were a power of two."""
    key = keys_of(w)
    return (key // 24 * 24 + (key & 23)).clamp(max=len(key) - 1)


def _copied_k_alone(w: Work, x):
    """The last full page of V is still the one that was shared before the copy."""
    page = keys_of(w) // PAGE
    return keys_where(x, page == len(page) // PAGE - 1, of_request(x))


def _one_page_for_all(w: Work, x):
    """The third page was given to all requests, and the last one wrote to it last."""
    return keys_where(x, keys_of(w) // PAGE == 2, x[-1:])


def _longer(more):
    """Return a bug that sees more(work, x) as keys after the last one, in all rows."""

    def bug(w: Work):
        s = torch.cat([w.s, w.q @ more(w, w.k).mT * w.call.scale], -1)
        return attend(s, torch.cat([w.v, more(w, w.v)], 2), w.call.q.dtype)

    return bug


def _rest_of_the_page(w: Work, x):
    """The slots after the last key hold the keys of the page before."""
    last = x.shape[2]
    return x[:, :, (torch.arange(last, last + -last % PAGE) - PAGE).clamp(min=0)]


def _one_slot_early(w: Work, x):
    """The new keys lie one slot early, and the last slot is empty."""
    first = max(x.shape[2] - w.q.shape[2] - 1, 0)
    empty = torch.zeros_like(x[:, :, :1])
    return torch.cat([x[:, :, :first], x[:, :, first + 1 :], empty], 2)


def _own_table(x):
    return torch.arange(len(pages(x, PAGE))).reshape(len(x), -1)


def _vectors_of_16(w: Work, x):
    """Pages hold vectors of 8 channels, key by key, and are read as vectors of 16."""
    if x.shape[-1] % 16:
        return x
    stored = pages(x, PAGE).unflatten(-1, (-1, 8)).transpose(2, 3).flatten(2)
    pool = stored.unflatten(2, (-1, PAGE, 16)).transpose(2, 3).flatten(3)
    return from_pages(x, pool, _own_table(x))


def _pages_by_heads(w: Work, x):
    """Pages lie head by head, and are read key by key."""
    kv = of_kv_heads(w, x)
    pool = pages(kv, PAGE)
    read = pool.reshape(len(pool), PAGE, kv.shape[1], -1).transpose(1, 2)
    return for_queries(w, from_pages(kv, read, _own_table(kv)))


def _chosen_by_the_last_query(w: Work):
    """A quarter of the keys, the best for the last query, and the first key serve all queries."""
    best = w.s[:, :, -1:].topk(max(1, w.s.shape[-1] // 4)).indices
    hide = torch.ones_like(w.s[:, :, -1:], dtype=torch.bool).scatter(-1, best, False)
    hide[..., 0] = False
    return attend(masked(w.s, hide), w.v, w.call.q.dtype)


def _tiles_in_turn(w: Work, x):
    """Each tile is read from the buffer of its neighbour, if that holds such a key."""
    key = keys_of(w)
    other = key ^ TILE
    return x[:, :, torch.where(other < len(key), other, key)]


def _upper_channels(x, index):
    """Return x with the upper half of the channels from other keys."""
    half = x.shape[-1] // 2
    return torch.cat([x[..., :half], x[:, :, index, half:]], -1)


def _upper_half_late(w: Work, x):
    key = keys_of(w)
    return _upper_channels(x, torch.where(key < TILE, key, key - TILE))


def _upper_half_early(w: Work, x):
    key = keys_of(w)
    return _upper_channels(x, torch.where(key + TILE < len(key), key + TILE, key))


def _last_rows_of_tiles(w: Work, x):
    return keys_where(x, keys_of(w) % TILE == TILE - 1, x.new_zeros(()))


BUGS: dict[str, Bug] = {
    "blocks of 32 keys at the stride of 16": keys_read(
        lambda w: keys_of(w) // 32 * 16 + keys_of(w) % 32
    ),
    "a bit mask for a page of 24": keys_read(_and_for_modulo),
    "copy on write copied K alone": reading(v=_copied_k_alone),
    "one page given to all requests": both(_one_page_for_all),
    "rejected drafts still seen": _longer(lambda w, x: of_request(x)[:, :, -3:]),
    "the last page read to its end, old keys in it": _longer(_rest_of_the_page),
    "new keys one slot early": both(_one_slot_early),
    "K's pages in vectors of 16 for 8": reading(k=_vectors_of_16),
    "pages of HND read as NHD": both(_pages_by_heads),
    "keys chosen by the last query": _chosen_by_the_last_query,
    "K's two buffers taken in turn the wrong way": reading(k=_tiles_in_turn),
    "the last K of each tile not loaded": reading(k=_last_rows_of_tiles),
    "upper channels of V a tile late": reading(v=_upper_half_late),
    "upper channels of K a tile early": reading(k=_upper_half_early),
}
"""By name: a function of the work that returns the wrong output."""
