"""Bugs of the eighth set in what is read: pages, tiles, heads, channels, formats of K and V.

Name: the bug, and a pattern (re.search, case sensitive) that a truthful name for it matches.
"""

import torch

from labkernels.measure.strangers.wrong import (
    Work,
    attend,
    keys_of,
    keys_read,
    masked,
    read,
    scored,
    stored,
    valued,
)

_PLACE = r"(key|page|tile|block|offset|slot|order|read|ring|again|twice|stage)"
_OF_V = rf"\bV\b.*{_PLACE}|keys read|stale"
_OF_K = rf"\bK\b.*{_PLACE}|keys read|stale"
_LOST = r"left out|dropped|skipped|missing"
_TRANSPOSED = r"transpos|layout|channels.*(order|mixed|elsewhere)|\b{}\b.*(order|channel)"


def _both(w: Work, k, v):
    return attend(w.scores(k=k), v, w.call.q.dtype)


def _other_request(w: Work, x, where):
    """Keys of the request after where `where` is True [L]."""
    return torch.where(where[:, None], x.roll(-1, 0), x)


def _late_pages_of_the_next_request(w: Work):
    late = keys_of(w) >= 32
    return _both(w, _other_request(w, w.k, late), _other_request(w, w.v, late))


def _all_of_the_first_request(w: Work):
    return _both(w, w.k[:1].expand_as(w.k), w.v[:1].expand_as(w.v))


def _k_without_batch_stride(w: Work):
    return w.scores(k=w.k[:1].expand_as(w.k))


def _pages_in_pairs(w: Work, size: int = 16):
    at = keys_of(w)
    to = at ^ size
    return torch.where(to < len(at), to, at)


def _ring_of_two_tiles(w: Work, size: int = 16):
    """The slot of two tiles ago was not yet overwritten, in every tile from the third on."""
    at = keys_of(w)
    return torch.where(at >= 2 * size, at - 2 * size, at)


def _last_page_is_the_first(w: Work, size: int = 16):
    at = keys_of(w)
    first = (len(at) - 1) // size * size
    return torch.where(at >= first, at - first, at)


def _next_tile_too_early(w: Work, size: int = 16):
    at = keys_of(w)
    return torch.where(at + size < len(at), at + size, at)


def _blocks_transposed(x, size: int = 8):
    """Each square of size x size elements of the last two axes transposed, as without .trans."""
    n, d = (length // size * size for length in x.shape[-2:])
    squares = x[..., :n, :d].unflatten(-1, (-1, size)).unflatten(-3, (-1, size))
    out = x.clone()
    out[..., :n, :d] = squares.transpose(-3, -1).flatten(-4, -3).flatten(-2)
    return out


def _swizzled(x, chunk: int = 8):
    """The chunks of a key's channels where a swizzle put them: chunk number xor key number."""
    chunks = x.shape[-1] // chunk
    some = 1 << (chunks.bit_length() - 1)
    c, key = torch.arange(x.shape[-1]), torch.arange(x.shape[-2])[:, None]
    to = ((c // chunk) ^ (key % some)) * chunk + c % chunk
    index = torch.where((c // chunk < some).expand_as(to), to, c.expand_as(to))
    return torch.gather(x, -1, index.expand_as(x))


def _by_modulo(w: Work, x):
    heads = torch.arange(w.s.shape[1]) % w.call.k.shape[1]
    return x.double()[:, heads]


def _heads_in_pairs(w: Work, out):
    to = torch.arange(out.shape[1]) ^ 1
    return out[:, torch.where(to < out.shape[1], to, to - 1)]


def _kv_head_too_late(w: Work):
    """(head + 1) // group, without leaving the last KV head."""
    heads = ((torch.arange(w.s.shape[1]) + 1) // w.call.group).clamp(max=w.call.k.shape[1] - 1)
    return _both(w, w.call.k.double()[:, heads], w.call.v.double()[:, heads])


def _nine_bits(w: Work):
    return keys_of(w) & 255


def _channels_beyond_64(w: Work):
    c = torch.arange(w.v.shape[-1])
    return w.v[..., torch.where(c < 64, c, c - 64)]


def _rows_of_v_late(w: Work, elements: int = 8):
    flat = w.v.flatten(-2)
    return flat.roll(-elements, -1).view_as(w.v)


def _odd_keys_are_the_even_ones(w: Work):
    return w.scores(k=read(w.k, keys_of(w) // 2 * 2))


def _row_before(w: Work, out):
    at = torch.arange(out.shape[2])
    return out[:, :, torch.where(at >= 4, at - 1, at)]


def _odd_channels_unwritten(out):
    return out * (torch.arange(out.shape[-1]) % 2 == 0)


def _last_of(w: Work, n: int):
    return (keys_of(w) >= w.k.shape[2] - n)[:, None]


def _in_8_bits(x, dtype):
    return x.to(dtype).double()


def _first_kv_head(w: Work, x, by: float):
    first = torch.arange(w.s.shape[1])[:, None, None] < w.call.group
    return torch.where(first, by * x, x)


def _scales_of_channels(w: Work):
    c = torch.arange(w.v.shape[-1])
    return w.v * (0.8 + 0.1 * (c * 7 % 5))


def _zero_point(w: Work, size: int = 32):
    odd = (keys_of(w) // size % 2 == 1)[:, None]
    return w.scores(k=w.k + 0.25 * odd)


def _turned(x, base: float = 1e4):
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[2])[:, None] * base ** (-torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    cos, sin = angle.double().cos(), angle.double().sin()
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


WRONG = {
    "pages from the third on of the next request": (_late_pages_of_the_next_request, "request"),
    "table row of the first request for all": (_all_of_the_first_request, "request"),
    "batch stride of K forgotten": (scored(_k_without_batch_stride), r"K.* request"),
    "V of the page after": (
        valued(lambda w: w.v.roll(-8, 2)),
        r"\bV\b.*(offset|of the key|page)|V.*keys? (on|later|ahead)",
    ),
    "V pages exchanged in pairs": (valued(lambda w: read(w.v, _pages_in_pairs(w))), _OF_V),
    "V two stages old": (valued(lambda w: read(w.v, _ring_of_two_tiles(w))), _OF_V),
    "K of the last page is that of the first": (
        scored(lambda w: w.scores(k=read(w.k, _last_page_is_the_first(w)))),
        _OF_K,
    ),
    "K prefetched over its tile": (
        scored(lambda w: w.scores(k=read(w.k, _next_tile_too_early(w)))),
        _OF_K,
    ),
    "keys after the last full tile of 16 dropped": (
        scored(lambda w: masked(w.s, (keys_of(w) >= w.k.shape[2] // 16 * 16) & (keys_of(w) > 0))),
        rf"{_LOST}|window",
    ),
    "V fragments of 8 by 8 not transposed": (
        valued(lambda w: _blocks_transposed(w.v)),
        _TRANSPOSED.format("V"),
    ),
    "K read without its swizzle": (
        scored(lambda w: w.scores(k=_swizzled(w.k))),
        r"swizzl|channels of (K|Q or K)|\bK\b.*channel|layout",
    ),
    "V read without its swizzle": (
        valued(lambda w: _swizzled(w.v)),
        r"swizzl|channels of V|\bV\b.*channel|layout",
    ),
    "heads exchanged in pairs": (stored(_heads_in_pairs), r"\bheads?\b|another row"),
    "K of KV head 0 for all heads": (
        scored(lambda w: w.scores(k=w.k[:, :1].expand_as(w.k))),
        r"\bK\b.*head|KV head|GQA",
    ),
    "V alone by the head modulo": (
        valued(lambda w: _by_modulo(w, w.call.v)),
        r"\bV\b.*head|KV head|GQA",
    ),
    "group counted from 1": (_kv_head_too_late, r"\bheads?\b|GQA"),
    "queries of another request": (
        scored(lambda w: w.scores(q=w.q.roll(1, 0))),
        r"\b[qQ]\b.*(another|row|request)|quer.*(another|request)",
    ),
    "key index in 8 bits": (keys_read(_nine_bits), r"again|wrap|overflow|ring|keys read|twice"),
    "channels of V beyond 64 read from the first": (
        valued(_channels_beyond_64),
        r"channels?\b",
    ),
    "rows of V begin 8 elements late": (
        valued(_rows_of_v_late),
        r"\bV\b.*(element|channel|offset|layout|some)|channels",
    ),
    "odd keys of K are the even ones": (
        scored(_odd_keys_are_the_even_ones),
        rf"{_OF_K}|\bK\b.*some",
    ),
    "rows stored one row on": (stored(_row_before), r"another row|another query|quer|rows"),
    "odd channels unwritten": (
        stored(lambda w, out: _odd_channels_unwritten(out)),
        r"channels?\b|never written",
    ),
    "V of the last 16 keys still zero": (
        valued(lambda w: w.v.masked_fill(_last_of(w, 16), 0.0)),
        r"\bV\b.*(0|zero)",
    ),
    "K of the last 4 keys still zero": (
        scored(lambda w: w.scores(k=w.k.masked_fill(_last_of(w, 4), 0.0))),
        r"\bK\b.*(0|zero)|key.* read as 0",
    ),
    "K in e5m2": (
        scored(lambda w: w.scores(k=_in_8_bits(w.k, torch.float8_e5m2))),
        r"\bK\b.*(e5m2|rounded|8 bits)",
    ),
    "q in steps of a quarter": (
        scored(lambda w: w.scores(q=torch.round(4 * w.q) / 4)),
        r"\b[qQ]\b.*(steps|rounded|bits|int)",
    ),
    "K scale of one KV head halved": (
        scored(lambda w: w.scores(k=_first_kv_head(w, w.k, 0.5))),
        r"\bscale|\bK\b.*(factor|times|halved)",
    ),
    "V scale of one KV head 1.25 times": (
        valued(lambda w: _first_kv_head(w, w.v, 1.25)),
        r"factor|times|\bscale of V|V scale",
    ),
    "V scales of channels forgotten": (
        valued(_scales_of_channels),
        r"factor|channel.*scale|scale.*channel|scales",
    ),
    "zero point of odd tiles of K forgotten": (
        scored(_zero_point),
        r"zero point|offset of (Q|K)|\bbias|K.*(added|constant)|weights? of",
    ),
    "V rotated with K": (
        valued(lambda w: _turned(w.v)),
        r"(RoPE|rotate|rotation).*(V|output)|V .*rotate",
    ),
}
"""Name: the bug, and a pattern that a right name for it matches."""
