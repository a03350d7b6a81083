"""Bugs of the sixteenth set in where K and V are read: tables, pages, slots, heads, addresses."""

from collections.abc import Callable

import torch

from labkernels.measure.strangers.looked_at.sixteenth import frame
from labkernels.measure.strangers.wrong import Work, keys_of, keys_read


def _new(w: Work):
    """Tell which keys are those of this step's tokens."""
    return keys_of(w) >= w.k.shape[2] - w.q.shape[2]


def _in_last_page(w: Work, page: int = 16):
    return keys_of(w) >= (w.k.shape[2] - 1) // page * page


def _by_table(change: Callable, page: int = 16) -> Callable:
    """Return what is read through another table of pages: change(table) returns it."""

    def read(w: Work, x):
        pool = frame.pages(x, page)
        count = -(-x.shape[2] // page)
        table = torch.arange(len(pool)).reshape(-1, count)
        return frame.from_pages(x, pool, change(table))

    return read


def _shorter_rows(table):
    """Read the table with rows of one entry less than they have."""
    requests, count = table.shape
    at = torch.arange(requests)[:, None] * max(1, count - 1) + torch.arange(count)
    return table.flatten()[at]


def _stale_prefix(table):
    """Keep the first three pages of the request that had the slot before."""
    return torch.where(torch.arange(table.shape[1]) < 3, table.roll(1, 0), table)


def _freed(table):
    """Read the third page from the next request, which got it when it was freed too early."""
    third = torch.arange(table.shape[1]) == min(2, table.shape[1] - 1)
    return torch.where(third, table.roll(-1, 0), table)


def _wrapped(x, w: Work):
    """Wrap addresses at five eighths of the cache, as an offset of too few bits does."""
    heads = frame.of_kv_heads(w, x)
    flat = heads.flatten(0, 2)
    at = torch.arange(len(flat)) % max(1, 5 * len(flat) // 8)
    return frame.for_queries(w, flat[at].reshape(heads.shape))


def _group_of_other_size(w: Work, x):
    """Divide a query head's number by one more than the group's size."""
    heads = frame.of_kv_heads(w, x)
    return heads[:, torch.arange(w.q.shape[1]) // (w.call.group + 1)]


def _modulo_heads(w: Work, x):
    heads = frame.of_kv_heads(w, x)
    return heads[:, torch.arange(w.q.shape[1]) % heads.shape[1]]


def _blocks_turned(w: Work, x, size: int = 8):
    """Turn each block of 8 keys and 8 channels, as a load without its transposition does."""
    n, d = (size * (length // size) for length in x.shape[2:])
    out = x.clone()
    blocks = x[:, :, :n, :d].unflatten(3, (-1, size)).unflatten(2, (-1, size))
    out[:, :, :n, :d] = blocks.transpose(3, 5).flatten(4, 5).flatten(2, 3)
    return out


def _ring_off(w: Work, size: int = 40):
    """Read slots of a ring of 40 that the newest keys have overwritten."""
    key, n = keys_of(w), w.k.shape[2]
    newest = key + (n - 1 - key) // size * size
    return torch.where(key < n // 2, key, newest)


def _multicast(w: Work, x, tile: int = 32):
    """Let the second half of each tile come from the KV head of the neighbouring block."""
    return frame.keys_where(x, keys_of(w) % tile >= tile // 2, frame.of_head(w, x))


BUGS: dict[str, Callable] = {
    "the table's rows one entry shorter": frame.both(_by_table(_shorter_rows)),
    "three pages of the slot's last request": frame.both(_by_table(_stale_prefix)),
    "a page freed too early": frame.both(_by_table(_freed)),
    "pages of 32 with the stride of pages of 16": keys_read(
        lambda w: keys_of(w) // 32 * 16 + keys_of(w) % 32 if w.k.shape[2] > 32 else keys_of(w) // 2
    ),
    "the last page copied from another request": frame.both(
        lambda w, x: frame.keys_where(x, _in_last_page(w), frame.of_request(x))
    ),
    "new tokens in the slots of the page before": keys_read(
        lambda w: torch.where(_new(w), (keys_of(w) - 16).clamp(min=0), keys_of(w))
    ),
    "V of the new tokens not yet written": frame.reading(
        v=lambda w, x: frame.keys_where(x, _new(w), torch.zeros_like(x))
    ),
    "K of the new tokens from another request": frame.reading(
        k=lambda w, x: frame.keys_where(x, _new(w), frame.of_request(x))
    ),
    "addresses that wrap": frame.both(lambda w, x: _wrapped(x, w)),
    "groups one head too large": frame.both(_group_of_other_size),
    "V of the head modulo the KV heads": frame.reading(v=_modulo_heads),
    "V of the KV head before": frame.reading(v=frame.of_head),
    "blocks of V not turned": frame.reading(v=_blocks_turned),
    "a ring's old slots overwritten": keys_read(_ring_off),
    "half of each tile from the neighbouring block": frame.both(_multicast),
}
"""Name: the bug."""
