"""Bugs in what is read: pages, slots, strides, tiles, channels, heads, requests, lengths."""

import math
from collections.abc import Callable

import torch

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

HEAD = r"(?i)\bheads?\b|\bGQA\b"
REQUEST = r"(?i)request|batch|another sequence|prefix"
OTHER_KEYS = (
    r"(?i)\bpage|\bslot|block table|stride|wrong keys|other keys|another key|offset"
    r"|keys read|\b(keys?|K|V)\b.*\b(places?|earlier|later|before|shift\w*|twice|repeat\w*)\b"
)
LEFT_OUT = (
    r"(?i)\b(keys?|pages?|slots?|tiles?|blocks?|splits?|tokens?|context)\b"
    r".*(left out|skipped|missing|dropped|not read|never read|lost)"
    r"|(leaves out|skips|misses|drops|without) .*\b(keys?|pages?|tiles?|blocks?|splits?|tokens?)\b"
)
CHANNELS = r"(?i)channel|swizzl|head dim|layout"


def of_k(change: Callable) -> Callable:
    """A bug in K: change(work, K) gives what is read."""
    return scored(lambda w: w.scores(k=change(w, w.k)))


def of_v(change: Callable) -> Callable:
    """A bug in V: change(work, V) gives what is read."""
    return valued(lambda w: change(w, w.v))


def of_both(change: Callable) -> Callable:
    """The same bug in K and in V."""
    return lambda w: attend(w.scores(k=change(w, w.k)), change(w, w.v), w.call.q.dtype)


def of_q(change: Callable) -> Callable:
    """A bug in the queries: change(work, q) gives what is read."""
    return scored(lambda w: w.scores(q=change(w, w.q)))


def packed(w: Work, x):
    """Rows that a kernel packs by query, then by head, unpacked in the other order."""
    b, heads, m, d = x.shape
    group = w.call.group
    row = torch.arange(m)[None] * group + torch.arange(group)[:, None]
    x = x.reshape(b, heads // group, group, m, d)
    return x[:, :, row // m, row % m].reshape(b, heads, m, d)


def _requests(x, index):
    """Tokens [B, L] of a cache that holds the requests one after the other."""
    b, h, n, d = x.shape
    flat = x.transpose(0, 1).reshape(h, b * n, d)
    return flat[:, index % (b * n)].transpose(0, 1)


def _tokens(w: Work):
    """The place of each request's tokens in such a cache, and the numbers of the requests."""
    b, n = w.k.shape[0], w.k.shape[2]
    request = torch.arange(b)[:, None]
    return request * n + torch.arange(n), request


def _of_kv_heads(w: Work, index):
    """Attention of each query head to another KV head."""
    k, v = w.call.k.double()[:, index], w.call.v.double()[:, index]
    return attend(w.scores(k=k), v, w.call.q.dtype)


def _query_heads(w: Work):
    return torch.arange(w.q.shape[1])


def _fit(x, dim: int):
    """The first channels of x, and zeros where x has fewer."""
    return torch.nn.functional.pad(x, (0, dim - x.shape[-1]))


def _elements(x, index):
    """The elements of a head's K or V [L D] by another index [L, D]."""
    return x.flatten(2)[:, :, index % math.prod(x.shape[2:])]


def _numbers(x):
    """The number of each element of a head [L, D]."""
    return torch.arange(math.prod(x.shape[2:])).reshape(x.shape[2:])


def _chunks_swapped(x, rows, size: int = 8):
    """Chunks of channels swapped in pairs, in some rows."""
    chunk = torch.arange(x.shape[-1]) // size
    last = x.shape[-1] // size - 1
    to = torch.where((chunk ^ 1) <= last, chunk ^ 1, chunk)
    index = to * size + torch.arange(x.shape[-1]) % size
    return torch.where(rows[:, None], x[..., index], x)


def _transposed(x, size: int = 8):
    """Squares of keys and channels transposed, where they are whole."""
    n, d = x.shape[2] // size * size, x.shape[3] // size * size
    squares = x[:, :, :n, :d].reshape(*x.shape[:2], n // size, size, d // size, size)
    x = x.clone()
    x[:, :, :n, :d] = squares.transpose(3, 5).reshape(*x.shape[:2], n, d)
    return x


def _interleaved_cache(w: Work, size: int = 16):
    """A cache [2, pages] read as if it were [pages, 2]."""
    n, dim = w.k.shape[2] // size * size, max(w.k.shape[3], w.v.shape[3])
    both = torch.cat([_fit(x, dim)[:, :, :n] for x in (w.k, w.v)], 2)
    pages = both.reshape(*both.shape[:2], -1, size, dim)
    k, v = (
        torch.cat([pages[:, :, first::2].flatten(2, 3), _fit(x, dim)[:, :, n:]], 2)
        for first, x in ((0, w.k), (1, w.v))
    )
    return attend(w.scores(k=k[..., : w.q.shape[3]]), v[..., : w.v.shape[3]], w.call.q.dtype)


def _counted(w: Work, weights):
    """Keys that count more than once."""
    return attend(w.s, w.v, w.call.q.dtype, weights=weights.double())


def _zero(x, where):
    """K or V with some keys [L] read as zeros."""
    return x.masked_fill(where[:, None], 0.0)


def _shifted_from(w: Work, first: int, by: int):
    index = keys_of(w)
    return torch.where(index < first, index, index - by)


def _ahead(w: Work, by: int):
    index = keys_of(w)
    return torch.where(index + by < len(index), index + by, index)


def _last(w: Work, keys: int):
    return keys_of(w) >= w.k.shape[2] - keys


WRONG = {
    # The page counter is not advanced once, so that each later page is the page before.
    "from the third page on, the page before is read": (
        keys_read(lambda w: _shifted_from(w, 32, 16)),
        OTHER_KEYS,
    ),
    # The kernel was compiled for pages of 8 slots and the cache has pages of 16.
    "pages of 16 slots are read as pages of 8": (
        keys_read(lambda w: (keys_of(w) // 8 * 16 + keys_of(w) % 8) % len(keys_of(w))),
        OTHER_KEYS,
    ),
    # The offset in the page is left out of the address.
    "all slots of a page read its first slot": (
        keys_read(lambda w: keys_of(w) // 16 * 16),
        OTHER_KEYS + r"|same key|duplicated?\b|first (key|slot) of",
    ),
    # Half of a page is fetched: the page has 32 slots and the loop copies 16.
    "the second half of each page of 32 is left out": (
        scored(lambda w: masked(w.s, keys_of(w) % 32 >= 16)),
        LEFT_OUT + r"|\bpage",
    ),
    # The block table has padded rows and the kernel takes a row stride that is one entry short.
    "each request starts a page too early in the block table": (
        of_both(lambda w, x: _requests(x, _tokens(w)[0] - 16 * _tokens(w)[1])),
        OTHER_KEYS + "|request|batch|sequence",
    ),
    # cu_seqlens counts one token too many for the first request.
    "later requests are read one token late": (
        of_both(lambda w, x: _requests(x, _tokens(w)[0] + (_tokens(w)[1] > 0))),
        OTHER_KEYS + "|request|batch|sequence|off by one",
    ),
    # The cascade kernel takes two pages as shared that are not.
    "the first 32 keys of every request are those of the first request": (
        of_both(lambda w, x: torch.cat([0 * x[:, :, :32] + x[:1, :, :32], x[:, :, 32:]], 2)),
        REQUEST,
    ),
    # Beams share the last page where a copy on write was forgotten.
    "odd requests read the last page of the request before": (
        of_both(
            lambda w, x: torch.where(
                ((torch.arange(len(x)) % 2 == 1)[:, None] & _last(w, 16))[:, None, :, None],
                x.roll(1, 0),
                x,
            )
        ),
        REQUEST + r"|\bpage",
    ),
    # The row of V in the block table is that of the next request; K has its own index.
    "V is read from the next request": (of_v(lambda w, x: x.roll(-1, 0)), REQUEST),
    # The lengths of the requests are those of another step.
    "request b is read without its last 5 b keys": (
        scored(
            lambda w: masked(
                w.s,
                (keys_of(w) >= len(keys_of(w)) - 5 * torch.arange(len(w.k))[:, None, None, None]),
            )
        ),
        LEFT_OUT + "|length|last keys|keys at the end",
    ),
    # The write of the new token to the cache comes after the attention kernel.
    "the newest key and value are still zero in the cache": (
        of_both(lambda w, x: _zero(x, _last(w, 1))),
        r"(?i)(last|newest) (key|token|slot)|\b(keys?|K|V)\b.*(zero|\b(as|is|are) 0\b|never)",
    ),
    # A prefill with a cached prefix calls the kernel without the cache.
    "the cached context is left out, the new tokens alone are read": (
        scored(lambda w: masked(w.s, ~_last(w, w.q.shape[2]))),
        LEFT_OUT + "|window|context|first keys",
    ),
    # The length is rounded down to the width of a vector load.
    "keys past the last whole 8 are left out": (
        scored(lambda w: masked(w.s, keys_of(w) >= len(keys_of(w)) // 8 * 8)),
        LEFT_OUT + "|last keys|keys at the end",
    ),
    # A captured graph pads the list of slots with slot 0 up to a multiple of 16.
    "padding slots point at the first key": (
        lambda w: _counted(w, 1 + (keys_of(w) == 0) * (-len(keys_of(w)) % 16)),
        r"(?i)(first key|key 0).*|\bpad|twice|counted|several times|too (heavy|large) a weight",
    ),
    # The last tile has zeros past the end of the keys and no mask.
    "zero keys past the end of the last tile count in the denominator": (
        lambda w: attend(
            w.s,
            w.v,
            w.call.q.dtype,
            sinks=torch.full((w.s.shape[1],), math.log(-w.s.shape[3] % 64 or 64)),
        ),
        r"(?i)\bpad|denominator|\bsink|zero keys|past the end|extra key",
    ),
    # A token's offset overflows its type and starts again at zero.
    "keys from 64 on are the first keys again": (
        keys_read(lambda w: keys_of(w) % 64),
        OTHER_KEYS + "|wrap|overflow|keys? again|modulo",
    ),
    # The ring of buffers is one stage behind for K.
    "the tile of K is that of the stage before": (
        of_k(lambda w, x: read(x, _shifted_from(w, 32, 32))),
        r"(?i)\bstale|\btile|\bstage|\bpage|\bK\b.*(earlier|before|offset|shift|other key)",
    ),
    # V is prefetched into the buffer that is about to be read.
    "the tile of V is that of the stage after": (
        of_v(lambda w, x: read(x, _ahead(w, 32))),
        r"(?i)\btile|\bstage|\bpage|\bV\b.*(later|ahead|after|next key|offset|shift|other key)",
    ),
    # The loader's predicate is false for one quarter of the threads: zeros fill shared memory.
    "K is zero in the last quarter of each tile of 64": (
        of_k(lambda w, x: _zero(x, keys_of(w) % 64 >= 48)),
        r"(?i)\bK\b.*(zero|(as|is) 0\b)|keys?.*(zero|(as|are) 0\b)",
    ),
    # Rows 8 to 15 of a fragment of V are not loaded.
    "V is zero in the odd eights of keys": (
        of_v(lambda w, x: _zero(x, keys_of(w) // 8 % 2 == 1)),
        r"(?i)\bV\b.*(zero|(as|is) 0\b)|values?.*(zero|(as|are) 0\b)",
    ),
    # q_head / num_kv_heads in place of q_head / group.
    "the KV head is the query head by the number of KV heads": (
        lambda w: _of_kv_heads(w, _query_heads(w) // w.call.k.shape[1] % w.call.k.shape[1]),
        HEAD,
    ),
    # The head's stride of V is 0 after an expand.
    "V of the first head is read for every head": (of_v(lambda w, x: 0 * x + x[:, :1]), HEAD),
    # K was expanded with repeat_interleave and V with repeat.
    "V of the heads in turn, K of the heads in groups": (
        valued(lambda w: w.call.v.double().repeat(1, w.call.group, 1, 1)),
        HEAD,
    ),
    # Two blocks of a cluster share the K and V of the first block's head.
    "odd heads read K and V of the KV head of the head before": (
        lambda w: _of_kv_heads(w, _query_heads(w) // 2 * 2 // w.call.group),
        HEAD,
    ),
    # The shard of the last KV head was never loaded.
    "K of the last KV head is zero": (
        of_k(lambda w, x: torch.cat([x[:, : -w.call.group], 0 * x[:, -w.call.group :]], 1)),
        r"(?i)\b(K|keys?|scores?)\b.*(zero|(as|is|are) 0\b)|uniform",
    ),
    # The arguments are in the wrong order.
    "K and V are exchanged": (
        lambda w: attend(
            w.scores(k=_fit(w.v, w.k.shape[3])), _fit(w.k, w.v.shape[3]), w.call.q.dtype
        ),
        r"(?i)K and V .*(swap|exchang|interchang)|(swap|exchang)\w* .*K and V|V .*in place of K",
    ),
    # The descriptor of V was made from the pointer of K.
    "V is read from the buffer of K": (
        valued(lambda w: _fit(w.k, w.v.shape[3])),
        r"(?i)K (is )?(read )?(in place|instead) of V|K as V"
        r"|(?-i:\bV\b.*\b(from|as|with|for|of|is)\b.*\bK\b)|K and V .*(swap|exchang)",
    ),
    # The cache has K pages first and the kernel wants K and V page by page.
    "a cache of K pages, then V pages is read as K and V page by page": (
        _interleaved_cache,
        r"(?i)\bpage|layout|interleav|K and V .*(swap|exchang|mixed)",
    ),
    # The row of K in shared memory is padded by 8 and the reader uses the padded stride.
    "K is read with a row stride that is 8 channels too long": (
        of_k(lambda w, x: _elements(x, _numbers(x) + 8 * keys_of(w)[:, None])),
        r"(?i)stride|layout|skew|\bK\b.*channel|channels? of K",
    ),
    # The pointer is cut to 16 bytes.
    "K is read from one element too early": (
        of_k(lambda w, x: _elements(x, _numbers(x) - 1)),
        r"(?i)\bK\b.*(channel|element|offset|shift|align)|channels of K|stride|layout",
    ),
    # The base of V carries half a row twice.
    "V is read from half a row too late": (
        of_v(lambda w, x: _elements(x, _numbers(x) + x.shape[3] // 2)),
        r"(?i)channel|\bV\b.*(half|element|offset|shift)|stride|layout",
    ),
    # The loop over the channels ends 8 short, as for a head dimension without a whole step.
    "the last 8 channels are left out of the scores": (
        of_k(lambda w, x: x * (torch.arange(x.shape[3]) < x.shape[3] - 8)),
        r"(?i)channels?\b.*(left out|missing|dropped|not |short|zero|0)|head dim|dot product",
    ),
    # Shared memory is swizzled by the row on the way in and not on the way out.
    "K has its chunks of 8 channels swapped in odd keys": (
        of_k(lambda w, x: _chunks_swapped(x, keys_of(w) % 2 == 1)),
        CHANNELS,
    ),
    # As above for V, with the other bit of the row.
    "V has its chunks of 8 channels swapped in half of the keys": (
        of_v(lambda w, x: _chunks_swapped(x, keys_of(w) % 8 >= 4)),
        CHANNELS,
    ),
    # ldmatrix without .trans for V.
    "V is transposed in squares of 8": (
        of_v(lambda w, x: _transposed(x)),
        r"(?i)transpos|ldmatrix|layout|channel|\bV\b.*mixed",
    ),
    # A packed tile of rows by query and head is unpacked by head and query when q is loaded.
    "the queries of a packed tile are loaded in another order": (
        of_q(packed),
        r"(?i)quer|another row|other rows?|\bpacked|\bGQA\b|\bheads?\b",
    ),
    # The query tile's address lacks the step of the later tiles.
    "later tiles of queries load the tile before": (
        of_q(lambda w, x: torch.cat([x[:, :, :16], x[:, :, : max(x.shape[2] - 16, 0)]], 2)),
        r"(?i)quer|\bq\b|another row|other row",
    ),
}
