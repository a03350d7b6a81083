"""Bugs of the tenth set in what is read: pages, tables, slots, heads, requests, tiles."""

from collections.abc import Callable

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.inputs import Asked
from labkernels.measure.strangers.looked_at.tenth.tiles import (
    K_KEYS,
    KEYS,
    LOST,
    TWICE,
    V_KEYS,
    heads,
    of_heads,
    rows,
    shown,
    softmax_parts,
    used,
)
from labkernels.measure.strangers.wrong import (
    Work,
    attend,
    keys_of,
    keys_read,
    masked,
    read,
    scored,
    valued,
)

_PAGE = 16


def _both(change: Callable) -> Callable:
    """A bug in K and V of the KV heads: change(work, tensor) returns another one."""

    def bug(w: Work):
        k, v = (of_heads(w, change(w, x)) for x in (w.call.k, w.call.v))
        return attend(w.scores(k=k), v, w.call.q.dtype)

    return bug


def _only_k(change: Callable) -> Callable:
    return scored(lambda w: w.scores(k=of_heads(w, change(w, w.call.k))))


def _only_v(change: Callable) -> Callable:
    return valued(lambda w: of_heads(w, change(w, w.call.v)))


def _by_request(x, index):
    """Each request's keys [B, L] of a tensor."""
    return torch.take_along_dim(x, index[:, None, :, None], 2)


def _requests(w: Work):
    return torch.arange(w.k.shape[0])[:, None]


def _last_table_entry(w: Work, most: int = 4):
    """A table of 4 entries, whose last one serves all later pages."""
    key = keys_of(w)
    n = w.k.shape[2]
    return ((key // _PAGE).clamp(max=most - 1) * _PAGE + key % _PAGE).clamp(max=n - 1)


def _late_row(w: Work, x):
    """Rows of the page table that begin one entry later with each request."""
    n = x.shape[2]
    return _by_request(x, (keys_of(w)[None] + _PAGE * (_requests(w) + 1)).clamp(max=n - 1))


def _page_layout(w: Work, x):
    """Pages [heads, slots, channels] read as [slots, heads, channels]."""
    b, h, n, d = x.shape
    pages = -(-n // _PAGE)
    x = torch.nn.functional.pad(x, (0, 0, 0, pages * _PAGE - n))
    x = x.reshape(b, h, pages, _PAGE, d).transpose(1, 2)  # as it lies in memory
    return x.reshape(b, pages, _PAGE, h, d).permute(0, 3, 1, 2, 4).flatten(2, 3)[:, :, :n]


def _big_pages(w: Work):
    """A table of pages of 16 read as if they had 32, in a pool whose pages are mixed."""
    n = w.k.shape[2]
    pages = -(-n // _PAGE)
    place = torch.randperm(pages, generator=torch.Generator().manual_seed(7))
    logical = torch.argsort(place)
    key = keys_of(w)
    slot = (place[key // 32] * 32 + key % 32) % (pages * _PAGE)
    return (logical[slot // _PAGE] * _PAGE + slot % _PAGE).clamp(max=n - 1)


def _suffix_of_another(w: Work, x):
    """Keys after a shared prefix from the request before."""
    half = x.shape[2] // 2
    return torch.cat([x[:, :, :half], x.roll(1, 0)[:, :, half:]], 2)


def _flat(w: Work, x, first):
    """Keys of all requests one behind the other, read from a first place [B, 1] in them."""
    b, h, n, d = x.shape
    flat = x.transpose(1, 2).reshape(b * n, h, d)
    index = (first + keys_of(w)[None]).clamp(0, b * n - 1)
    return flat[index].transpose(1, 2)


def _early(w: Work, x):
    """Each request begins one token earlier than the one before, as with offsets without the 0."""
    return _flat(w, x, _requests(w) * (x.shape[2] - 1) - 2)


def _offsets_of_queries(w: Work, x):
    """The offsets of the queries used for the keys."""
    m = min(w.q.shape[2], x.shape[2] - 1)
    return _flat(w, x, _requests(w) * m + 0)


def _last_tile_back(w: Work, size: int = 64):
    """The last tile moved back until it fits, without a mask for keys that come again."""
    n = w.k.shape[2]
    size = min(n, 32 if n <= size else size)
    whole = n // size * size
    again = torch.arange(n - size, n) if n % size else torch.arange(0)
    index = torch.cat([torch.arange(whole), again])
    s = w.scores()[..., index]
    return attend(s, read(w.v, index), w.call.q.dtype)


def _tiles_of_47(w: Work):
    key = keys_of(w)
    return key // 48 * 47 + key % 48


def _newest(w: Work, x, value):
    """The newest key with another value."""
    x = x.clone()
    x[:, :, -1] = value
    return x


def _without_newest_v(w: Work):
    return of_heads(w, _newest(w, w.call.v, 0.0))


def _like(x, dim: int):
    """Channels of x repeated or cut to a number."""
    return x[..., torch.arange(dim) % x.shape[-1]]


def _k_pages_for_v(w: Work):
    """Odd pages of V from the pool of K."""
    odd = (keys_of(w) // _PAGE % 2 == 1)[:, None]
    return torch.where(odd, _like(w.k, w.v.shape[-1]), w.v)


def _strided(w: Work, x, stride: int):
    """Rows read at another stride than they lie."""
    b, h, n, d = x.shape
    index = (keys_of(w)[:, None] * stride + torch.arange(d)) % (n * d)
    return x.reshape(b, h, n * d)[:, :, index]


def _padded_groups(w: Work):
    """Rows of a packed group in a tile that has room for a power of two of heads."""
    b, h, m, d = w.q.shape
    group = w.call.group
    room = 1 << group.bit_length()
    row = torch.arange(m * group)
    query, head = row // room, (row % room).clamp(max=group - 1)
    q = w.q.reshape(b, h // group, group, m, d)[:, :, head, query]
    q = q.reshape(b, h // group, m, group, d).transpose(2, 3).reshape(b, h, m, d)
    return w.scores(q=q)


def _rounded_up(w: Work):
    """The KV head of each query head, rounded up."""
    of = (torch.arange(w.q.shape[1]) + w.call.group // 2 + 1) // w.call.group
    return of.clamp(max=w.call.k.shape[1] - 1)


def _stale_requests(w: Work):
    """Queries of a buffer that holds those of the request before."""
    q = w.q.clone()
    half = q.shape[0] // 2
    q[half:] = w.q.roll(1, 0)[half:]
    return w.scores(q=q)


def _newest_slot(w: Work):
    """The newest key in the slot of an older one, whose contents are read for it."""
    key = keys_of(w)
    n = len(key)
    return torch.where(key == n - 1, n // 3, key)


def _past_end(w: Work):
    """The rest of the last page, left by another request, in the scores of every row."""
    n = w.k.shape[2]
    rest = -n % _PAGE or _PAGE
    k, v = (x.roll(1, 0)[:, :, :rest] for x in (w.k, w.v))
    s = torch.cat([w.s, w.q @ k.mT * w.call.scale], -1)
    return attend(s, torch.cat([w.v, v], 2), w.call.q.dtype)


def _in_reach_of_tensor_cores(n: int):
    """The order of keys in the registers of a tensor core, for sixteen of them."""
    order = torch.tensor([0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15])
    key = torch.arange(n)
    there = key // 16 * 16 + order[key % 16]
    return torch.where(key // 16 * 16 + 16 <= n, there, key)


def _shared_rows(w: Work):
    """The last rows of a tile of queries read the row that fits."""
    q = rows(w.q)
    index = torch.arange(q.shape[1])
    return w.scores(q=heads(q[:, torch.where(index % 4 == 3, index - 1, index)], w.q))


def _reversed_tiles(w: Work, size: int = 32):
    """Tiles from the last to the first, under the mask of tiles in order."""
    key = keys_of(w)
    tiles = len(key) // size
    return torch.where(key < tiles * size, (tiles - 1 - key // size) * size + key % size, key)


def _half_of_channels_late(w: Work):
    """The second half of the channels of V from the next token."""
    d = w.v.shape[3]
    return torch.cat([w.v[..., : d // 2], w.v.roll(-1, 2)[..., d // 2 :]], -1)


def _window_of_cache(w: Work):
    """A page that was given back and filled by another request."""
    key, n = keys_of(w), w.k.shape[2]
    page = (key // _PAGE == n // _PAGE // 2)[:, None]
    k, v = (torch.where(page, x.roll(1, 0), x) for x in (w.k, w.v))
    return attend(w.scores(k=k), v, w.call.q.dtype)


def _v_rows_of_group(w: Work):
    """A transposed load of V whose row is the head of the group: odd heads take the next row."""
    index = keys_of(w)[None] + (torch.arange(w.v.shape[1]) % 2)[:, None]
    return torch.take_along_dim(w.v, index.clamp(max=w.v.shape[2] - 1)[None, :, :, None], 2)


def _lost_tokens(w: Work):
    """Pages of the shared prefix hidden from all requests but the first."""
    hidden = (keys_of(w) < _PAGE)[None, None, None] & (_requests(w) > 0)[..., None, None]
    return shown(w, w.hidden | hidden)


def _half_of_k_tile(w: Work):
    """K of the tile before in half of every second tile, whose copy was still on its way."""
    key = keys_of(w)
    late = (key % 64 >= 32) & (key % 64 < 48)
    return w.scores(k=read(w.k, torch.where(late, key - 32, key)))


def _atomics(w: Work):
    """Weights of keys that two warps add at once: one of two sums in 8 is lost."""
    p, l, _ = softmax_parts(w)
    lost = (keys_of(w) % 8 == 5) & (keys_of(w) > 0)
    return (used(p.masked_fill(lost, 0.0), w) @ w.v / l).to(w.call.q.dtype)


REQUEST = "another request"
HEAD = "of another head|KV heads|GQA|heads"
ROW = "another row|Q of another|the query|heads"
WRONG: dict[str, tuple[Bug, str]] = {
    "the last entry of a short table for later pages": (
        keys_read(_last_table_entry),
        f"{KEYS}|{TWICE}",
    ),
    "table rows that begin later with each request": (
        _both(_late_row),
        f"{KEYS}|{LOST}|{TWICE}|keys missing",
    ),
    "K pages with slots before heads": (
        _only_k(_page_layout),
        f"{K_KEYS}|K of another head|layout",
    ),
    "V pages with slots before heads": (
        _only_v(_page_layout),
        f"{V_KEYS}|V of another head|layout",
    ),
    "a table of pages of 16 read as pages of 32": (keys_read(_big_pages), f"{KEYS}|{TWICE}"),
    "the suffix of the request before": (_both(_suffix_of_another), f"{REQUEST}|{KEYS}"),
    "K in the order of beams, V not": (
        _only_k(lambda w, x: x.roll(1, 0)),
        f"{REQUEST}|K of another|{K_KEYS}",
    ),
    "KV head rounded up": (
        lambda w: attend(
            w.scores(k=w.call.k.double()[:, _rounded_up(w)]),
            w.call.v.double()[:, _rounded_up(w)],
            w.call.q.dtype,
        ),
        HEAD,
    ),
    "V of the KV head after": (
        _only_v(lambda w, x: x[:, (torch.arange(x.shape[1]) + 1).clamp(max=x.shape[1] - 1)]),
        "V of another head|V read from",
    ),
    "packed groups with room for a power of two": (scored(_padded_groups), ROW),
    "offsets of keys one token early": (_both(_early), KEYS),
    "offsets of V one token early": (_only_v(_early), f"{V_KEYS}|{REQUEST}"),
    "offsets of queries used for keys": (
        _both(_offsets_of_queries),
        f"{KEYS}|{REQUEST}",
    ),
    "the last tile moved back to fit": (_last_tile_back, f"{TWICE}|keys by a factor|{KEYS}"),
    "tiles of 48 keys that advance by 47": (keys_read(_tiles_of_47), f"{KEYS}|{TWICE}"),
    "keys that begin after the first page": (
        keys_read(lambda w: (keys_of(w) + _PAGE).clamp(max=len(keys_of(w)) - 1)),
        f"{KEYS}|{LOST}|{TWICE}",
    ),
    "the newest key in another key's slot": (
        keys_read(_newest_slot),
        f"{KEYS}|{TWICE}|{LOST}",
    ),
    "the newest V not yet written": (
        valued(_without_newest_v),
        "V read as 0|V without|V read some",
    ),
    "the newest K and V not yet written": (
        _both(lambda w, x: _newest(w, x, 0.0)),
        "read as 0|never written|uninitialised",
    ),
    "odd pages of V from K's pool": (valued(_k_pages_for_v), "K read for V|V read|wrong page"),
    "K with the stride of a padded row": (
        _only_k(lambda w, x: _strided(w, x, x.shape[-1] + 8)),
        f"{K_KEYS}|stride",
    ),
    "V with a stride 16 too short": (
        _only_v(lambda w, x: _strided(w, x, x.shape[-1] - 16)),
        f"{V_KEYS}|stride",
    ),
    "a page copied too late": (_window_of_cache, f"{REQUEST}|{KEYS}"),
    "queries of the request before, in half of the batch": (
        scored(_stale_requests),
        f"{REQUEST}|another row|Q of another|the query",
    ),
    "every fourth row with the query before it": (scored(_shared_rows), ROW),
    "keys past the end from another request": (
        _past_end,
        "past the end|padding|hidden keys|keys that the mask",
    ),
    "V in the order of the registers": (
        valued(lambda w: read(w.v, _in_reach_of_tensor_cores(w.v.shape[2]))),
        V_KEYS,
    ),
    "K in the order of the registers": (
        scored(lambda w: w.scores(k=read(w.k, _in_reach_of_tensor_cores(w.k.shape[2])))),
        K_KEYS,
    ),
    "tiles from the last under a mask from the first": (
        keys_read(_reversed_tiles),
        f"{KEYS}|mask|window|{LOST}",
    ),
    "half of V's channels from the next token": (
        valued(_half_of_channels_late),
        f"{V_KEYS}|channels",
    ),
    "odd heads of a group with the next row of V": (
        valued(_v_rows_of_group),
        f"{V_KEYS}|at an offset",
    ),
    "the first page hidden from later requests": (
        scored(_lost_tokens),
        f"{LOST}|window|another mask",
    ),
    "half of a tile of K not yet there": (scored(_half_of_k_tile), K_KEYS),
    "one addition in eight lost in o": (
        _atomics,
        "V read as 0|V read some|V without|V by a factor",
    ),
    "the oldest keys, every fourth left out": (
        scored(lambda w: masked(w.s, (keys_of(w) < w.s.shape[-1] // 2) & (keys_of(w) % 4 == 2))),
        f"{LOST}|another mask",
    ),
}
"""Name: the bug, and a pattern that a right name for it matches."""
ASKED: dict[str, Asked] = {"tiles from the last under a mask from the first": Asked(window_left=63)}
"""What a bug needs to be asked for."""
