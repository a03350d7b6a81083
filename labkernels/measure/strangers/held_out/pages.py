"""Bugs of caches: tables of pages, requests, KV heads and new keys."""

import torch

from labkernels.measure.strangers.looked_at.sixteenth.frame import (
    both,
    for_queries,
    keys_where,
    of_kv_heads,
    of_request,
    reading,
)
from labkernels.measure.strangers.wrong import Work, keys_of


def _at(index):
    """Return what is read at index(keys), or a key itself where there is no such key."""

    def read(w: Work, x):
        key = keys_of(w)
        at = index(key)
        return x[:, :, torch.where(at < len(key), at, key)]

    return read


def _other_order(key):
    pages = (len(key) + 15) // 16
    return (5 * (key // 16) + 2) % pages * 16 + key % 16


def _of_heads(number):
    """Return what is read if number(work, query heads) is the number of a KV head."""

    def read(w: Work, x):
        found = of_kv_heads(w, x)
        return found[:, number(w, torch.arange(x.shape[1])) % found.shape[1]]

    return read


def _last_page_of_pool(w: Work, x):
    key = keys_of(w)
    at = (len(key) - 48 + key).clamp(0, len(key) - 1)
    return keys_where(x, key // 16 == 2, x[-1:, :, at].expand_as(x))


def _first_request(w: Work, x):
    return keys_where(x, keys_of(w) < 32, x[:1].expand_as(x))


def _beams(w: Work, x):
    return keys_where(x, keys_of(w) >= len(keys_of(w)) - 40, of_request(x))


def _new(w: Work):
    """Return True for the keys of the queries' own tokens."""
    return keys_of(w) >= w.k.shape[2] - w.q.shape[2]


def _tokens_first(w: Work, x):
    """Return x whose new keys were stored token by token and are read head by head."""
    x = of_kv_heads(w, x).clone()
    new = x[:, :, _new(w)]
    x[:, :, _new(w)] = new.transpose(1, 2).reshape(new.shape)
    return for_queries(w, x)


BUGS = {
    "V's pages swapped in pairs": reading(v=_at(lambda key: key ^ 16)),
    "half a page read for a whole one": both(_at(lambda key: key // 16 * 16 + key % 8)),
    "V by another layer's table": reading(v=_at(_other_order)),
    "query heads in groups that are one too large": both(
        _of_heads(lambda w, head: head // (w.call.group + 1))
    ),
    "V's heads by the remainder": reading(v=_of_heads(lambda w, head: head)),
    "the second rank reads the first one's KV heads": both(
        _of_heads(lambda w, head: head % max(1, len(head) // 2) // w.call.group)
    ),
    "the first request's prefix for all": both(_first_request),
    "beams reordered in K alone": reading(k=_beams),
    "an entry of -1 reads the pool's last page": both(_last_page_of_pool),
    "the chunk's K is not yet written": reading(
        k=lambda w, k: keys_where(k, _new(w), torch.zeros_like(k))
    ),
    "new keys stored by token and read by head": both(_tokens_first),
}
