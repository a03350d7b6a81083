"""Bugs of the fifth set in pages, tiles and masks."""

import math

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
_READ = "key|page"


def _plain(w: Work, hide):
    return masked(w.q @ w.k.mT * w.call.scale, hide)


def _pool_as_one(w: Work, size: int = 16):
    """The pool read without its table: pages of the requests in turn."""
    b, n = w.k.shape[0], w.k.shape[2] // size
    page = torch.arange(b)[:, None] * n + torch.arange(n)
    rows = (page // b % n)[..., None] * size + torch.arange(size)
    request = (page % b)[..., None].expand(-1, -1, size)
    k, v = (x.clone() for x in (w.k, w.v))
    for own, other in ((k, w.k), (v, w.v)):
        own[:, :, : n * size] = other[request.flatten(1), :, rows.flatten(1)].transpose(1, 2)
    return attend(w.scores(k=k), v, w.call.q.dtype)


def _wide_rows(x, more: int = 4):
    """Rows read as if each had its scales behind it."""
    n, d = x.shape[-2:]
    flat = torch.cat([x.flatten(-2), x.new_zeros(*x.shape[:-2], n * more)], -1)
    index = torch.arange(n)[:, None] * (d + more) + torch.arange(d)
    return flat[..., index.flatten()].unflatten(-1, (n, d))


def _of_the_stage_before(x, size: int, every: int):
    """Return x with one of every `every` tiles replaced by the tile before."""
    index = torch.arange(x.shape[2])
    late = (index // size % every == every - 1) & (index >= size)
    return read(x, torch.where(late, index - size, index))


def _mean_of_four(x):
    n = x.shape[2] // 4 * 4
    mean = x[:, :, :n].unflatten(2, (-1, 4)).mean(3).repeat_interleave(4, 2)
    return torch.cat([mean, x[:, :, n:]], 2)


def _swapped_pages(w: Work, size: int = 16):
    odd = (keys_of(w) // size % 2 == 1)[:, None]
    k, v = torch.where(odd, w.v, w.k), torch.where(odd, w.k, w.v)
    return attend(w.scores(k=k), v, w.call.q.dtype)


def _k_pages_dealt(w: Work, size: int = 16):
    n = w.k.shape[2] // size
    order = torch.randperm(n, generator=torch.Generator().manual_seed(5))
    index = keys_of(w)
    index[: n * size] = (order[:, None] * size + torch.arange(size)).flatten()
    return w.scores(k=read(w.k, index))


def _not_yet_written(w: Work):
    """The newest token's row of the cache is that of the token before."""
    index = keys_of(w)
    index[-1] -= 1
    return index


def _segments(w: Work):
    """Return scores in which the sequences of a packed call do not see each other."""
    ends = torch.tensor([20, 45, 61, 90, 128, 150, 333])
    query, key = (torch.bucketize(x, ends, right=True) for x in places(w))
    return masked(w.s, query != key)


def _blocks_of_a_mask(w: Work, size: int = 16):
    query, key = places(w)
    off = (query // size + key // size) % 3 == 0
    return masked(w.s, off & (query // size != key // size))


def _later_half_one_tile_short(w: Work):
    query, key = places(w)
    late = torch.arange(w.s.shape[2])[:, None] >= w.s.shape[2] // 2
    return masked(w.s, late & (key > query - 8) & (key > 0)) if w.call.causal else w.s


def _left_padding(w: Work):
    first = torch.arange(w.s.shape[0])[:, None, None, None] * 3 + 2
    return masked(w.s, keys_of(w) < first)


def _random_tiles(w: Work, size: int = 16):
    """Return scores in which a race hides random tiles, others in each row, but no maximum."""
    n = -(-w.s.shape[-1] // size)
    lost = torch.rand(*w.s.shape[:3], n, generator=torch.Generator().manual_seed(3)) < 0.1
    hide = lost.repeat_interleave(size, -1)[..., : w.s.shape[-1]]
    return masked(w.s, hide & (w.s < w.s.amax(-1, keepdim=True)))


KEYS: dict[str, tuple[Bug, str]] = {
    "four pages over and over": (keys_read(lambda w: keys_of(w) % 64), _READ),
    "table of tokens read as pages": (
        keys_read(lambda w: keys_of(w) // 256 * 16 + keys_of(w) % 16),
        _READ,
    ),
    "page number without its second bit": (
        keys_read(lambda w: (keys_of(w) // 16 & ~2) * 16 + keys_of(w) % 16),
        _READ,
    ),
    "pool read as one run": (_pool_as_one, "request|" + _READ),
    "rows as long as with their scales": (
        lambda w: attend(w.scores(k=_wide_rows(w.k)), _wide_rows(w.v), w.call.q.dtype),
        "K and V (read|in)|element|layout|stride",
    ),
    "V of the stage before in odd tiles": (
        valued(lambda w: _of_the_stage_before(w.v, 16, 2)),
        "V .*(order|offset|key|page|tile|read)",
    ),
    "K of the stage before in each third tile": (
        scored(lambda w: w.scores(k=_of_the_stage_before(w.k, 32, 3))),
        "K .*(order|offset|key|page|tile|read)",
    ),
    "last key of each 64 is the one before": (
        keys_read(lambda w: keys_of(w) - (keys_of(w) % 64 == 63).long()),
        _READ,
    ),
    "first token of each page lost": (
        scored(lambda w: masked(w.s, (keys_of(w) % 16 == 0) & (keys_of(w) > 0))),
        _LOST,
    ),
    "even tiles for odd ones": (
        keys_read(lambda w: keys_of(w) // 16 // 2 * 32 + keys_of(w) % 16),
        _READ,
    ),
    "mean of four keys' values": (valued(lambda w: _mean_of_four(w.v)), "V .*(mean|average|key)"),
    "K and V exchanged in odd pages": (_swapped_pages, "K and V exchanged"),
    "pages of K dealt anew": (scored(_k_pages_dealt), "K .*(order|key|page)"),
    "newest key not yet written": (keys_read(_not_yet_written), _READ),
    "all of the own chunk of 16": (
        scored(
            lambda w: _plain(w, places(w)[1] // 16 > places(w)[0] // 16) if w.call.causal else w.s
        ),
        _MASK,
    ),
    "window of 24 without the own key": (
        scored(
            lambda w: (
                masked(w.s, (places(w)[0] - places(w)[1] > 24) | (places(w)[0] == places(w)[1]))
                if w.s.shape[-1] > 1 and not w.call.causal
                else w.s
            )
        ),
        _LOST + "|" + _MASK,
    ),
    "diagonal 8 short in the later half": (scored(_later_half_one_tile_short), _MASK),
    "blocks of a sparse mask": (scored(_blocks_of_a_mask), _LOST + "|" + _MASK),
    "keys after the query": (
        scored(lambda w: _plain(w, places(w)[1] < places(w)[0]) if w.call.causal else w.s),
        _MASK,
    ),
    "packed sequences kept apart": (scored(_segments), _LOST + "|" + _MASK),
    "padding on the left": (scored(_left_padding), _LOST + "|" + _MASK),
    "two keys of every five": (
        scored(lambda w: masked(w.s, (places(w)[0] - places(w)[1]) % 5 > 1)),
        _LOST + "|" + _MASK,
    ),
    "tiles lost at random": (scored(_random_tiles), _LOST + "|race"),
    "largest score counted twice": (
        scored(lambda w: w.s + math.log(2) * (w.s == w.s.amax(-1, keepdim=True))),
        "twice|maxim",
    ),
}
"""Name: the bug, and a pattern that a right name for it matches."""
