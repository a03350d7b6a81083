"""Bugs of what a kernel reads: tables, blocks, strides, buffers and channels of Q, K and V."""

import torch

from labkernels.measure.strangers.wrong import Work, attend, keys_of, scored
from tests.strangers.frame import (
    both,
    for_queries,
    keys_where,
    of_kv_heads,
    of_request,
    reading,
)


def _key_at(index):
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


_CACHES = {
    "V's pages swapped in pairs": reading(v=_key_at(lambda key: key ^ 16)),
    "half a page read for a whole one": both(_key_at(lambda key: key // 16 * 16 + key % 8)),
    "V by another layer's table": reading(v=_key_at(_other_order)),
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


def _transposed(w: Work, x):
    """Return x with each block of eight keys and eight channels transposed."""
    keys, channels = (size // 8 * 8 for size in x.shape[-2:])
    out = x.clone()
    blocks = x[..., :keys, :channels].unflatten(-1, (channels // 8, 8))
    blocks = blocks.unflatten(-3, (keys // 8, 8)).transpose(-3, -1)
    out[..., :keys, :channels] = blocks.flatten(-2).flatten(-3, -2)
    return out


def _swizzled(w: Work, x):
    """Return x written with a swizzle by eight keys and read with one by four."""
    channel, key = torch.arange(x.shape[-1]), torch.arange(x.shape[2])[:, None]
    chunk = channel // 8
    other = chunk ^ (key & 4)
    other = torch.where(other < max(1, x.shape[-1] // 8), other, chunk)
    return x.gather(-1, (other * 8 + channel % 8).expand(x.shape))


def _strided(w: Work, x, of_head: int, of_key: int, of_channel: int):
    """Return keys read from all KV heads of a request, which lie one after another in x."""
    heads, keys, channels = (torch.arange(size) for size in x.shape[1:])
    at = heads[:, None, None] * of_head + keys[:, None] * of_key + channels * of_channel
    flat = x.flatten(1)
    return for_queries(w, flat[:, at % flat.shape[1]])


def _wide_rows(w: Work, x):
    x = of_kv_heads(w, x)
    return _strided(w, x, x[0, 0].numel(), x.shape[-1] + 8, 1)


def _long_columns(w: Work, x):
    x = of_kv_heads(w, x)
    keys = x.shape[2]
    return _strided(w, x.mT.contiguous().view(x.shape), x[0, 0].numel(), 1, keys + -keys % 8)


def _padded_requests(w: Work, x):
    """Return keys of requests that begin at multiples of a length padded to 8."""
    batch, keys = x.shape[0], x.shape[2]
    rows = x.transpose(0, 1).flatten(1, 2)
    at = torch.arange(batch)[:, None] * (keys + -keys % 8) + torch.arange(keys)
    return rows[:, at % rows.shape[1]].transpose(0, 1)


def _in_turns(w: Work):
    """Pages hold 16 keys and 16 values, and are read as pairs of a key and its value."""
    if w.k.shape != w.v.shape:
        return attend(w.s, w.v, w.call.q.dtype)
    last, key = w.k.shape[2] - 1, keys_of(w)
    slot = key % 16
    found = []
    for odd in (0, 1):
        at = (key - slot + (2 * slot + odd) % 16).clamp(max=last)
        found.append(torch.where((slot < 8)[:, None], w.k[:, :, at], w.v[:, :, at]))
    return attend(w.scores(k=found[0]), found[1], w.call.q.dtype)


def _late_channels(w: Work, x):
    rows = of_kv_heads(w, x).transpose(1, 2)
    late = rows.flatten(2).roll(-8, -1).view(rows.shape)
    return for_queries(w, late.transpose(1, 2))


def _of_k(w: Work, v):
    channels = v.shape[-1]
    return torch.cat([w.k[..., :channels], v[..., w.k.shape[-1] :]], -1)


def _twice_at_the_end(w: Work):
    q = w.q.clone()
    q[..., -16:] *= 2
    return w.scores(q=q)


def _shared_end(w: Work, k):
    return torch.cat([k[..., :-16], k[:, :1, :, -16:].expand_as(k[..., -16:])], -1)


def _end_of_next_head(w: Work):
    half = w.q.shape[-1] // 2
    return w.scores(q=torch.cat([w.q[..., :half], w.q.roll(-1, 1)[..., half:]], -1))


def _at(index):
    """Return a change of what is read: index(keys) gives the keys that are read, or none."""

    def read(w: Work, x):
        key = keys_of(w)
        at = index(key)
        return x[:, :, torch.where((at >= 0) & (at < len(key)), at, key)]

    return read


def _again(w: Work, k):
    out = k.clone()
    size = max(0, min(32, k.shape[-1] - 32))
    out[..., 32 : 32 + size] = k[..., :size]
    return out


def _third_buffer(key):
    tile = key // 16
    return torch.where((tile > 2) & (tile % 3 == 2), 32 + key % 16, key)


_CHANNELS = {
    "8 by 8 blocks of V not transposed": reading(v=_transposed),
    "8 by 8 blocks of K not transposed": reading(k=_transposed),
    "V with a swizzle of four keys for eight": reading(v=_swizzled),
    "K at a stride of eight channels more": reading(k=_wide_rows),
    "V's columns at a padded length": reading(v=_long_columns),
    "requests begin at padded lengths": reading(_padded_requests, _padded_requests),
    "a page of keys and values read in turns": _in_turns,
    "K begins eight channels late": reading(k=_late_channels),
    "V taken from K's channels": reading(v=_of_k),
    "the last 16 channels enter scores twice": scored(_twice_at_the_end),
    "the last 16 channels of K of the first head": reading(k=_shared_end),
    "Q's upper channels of the next head": scored(_end_of_next_head),
    "K's third buffer is never filled again": reading(k=_at(_third_buffer)),
    "odd tiles take the next tile's V": reading(
        v=_at(lambda key: torch.where(key // 16 % 2 == 1, key + 16, key))
    ),
    "the last four V of 16 are those before": reading(
        v=_at(lambda key: torch.where(key % 16 >= 12, key - 16, key))
    ),
    "the second 32 channels of K are the first": reading(k=_again),
    "four V in the order 0 2 1 3": reading(
        v=_at(lambda key: key // 4 * 4 + torch.tensor([0, 2, 1, 3])[key % 4])
    ),
}
BUGS = _CACHES | _CHANNELS
