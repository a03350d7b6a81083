"""Bugs of the fourth set in which keys, values and heads a row reads, and with what weights."""

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
_MASK = "mask|hidden|causal"
_TURN = (0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15)  # rows of a fragment


def _plain(w: Work, hide):
    return masked(w.q @ w.k.mT * w.call.scale, hide)


def _of_heads(w: Work, of):
    """Query head h reads KV head of(h, Hkv, group)."""
    n, group = w.call.k.shape[1], w.call.group
    index = torch.tensor([min(n - 1, of(h, n, group)) for h in range(w.q.shape[1])])
    k, v = (x.double()[:, index] for x in (w.call.k, w.call.v))
    return attend(w.scores(k=k), v, w.call.q.dtype)


def _first_of_all_v(w: Work):
    return w.call.v.double()[:, :1].expand(-1, w.q.shape[1], -1, -1)


def _first_page_of_request_0(w: Work, size: int = 16):
    first = (keys_of(w) < size)[:, None]
    k, v = (torch.where(first, x[:1], x) for x in (w.k, w.v))
    return attend(w.scores(k=k), v, w.call.q.dtype)


def _odd_pages(w: Work, size: int = 16):
    odd = (keys_of(w) // size % 2 == 1)[:, None]
    k, v = (x.masked_fill(odd, 0.0) for x in (w.k, w.v))
    return attend(w.scores(k=k), v, w.call.q.dtype)


def _second_half_of_the_next(w: Work, size: int = 64):
    index = keys_of(w)
    late = (index % size >= size // 2) & (index + size < len(index))
    return torch.where(late, index + size, index)


def _turned_within(n: int, order) -> torch.Tensor:
    size, index = len(order), torch.arange(n)
    moved = index // size * size + torch.tensor(order)[index % size]
    return torch.where(index < n // size * size, moved, index)


def _pages_of_v_reversed(w: Work, size: int = 16):
    n = w.v.shape[2] // size
    order = torch.arange(w.v.shape[2])
    order[: n * size] = order[: n * size].unflatten(0, (n, size)).flip(0).flatten()
    return read(w.v, order)


def _factors_of_pages(w: Work, size: int = 16):
    return torch.tensor([1.0, 0.5, 1.5, 0.8]).double()[keys_of(w) // size % 4][:, None]


def _scales_of_tokens(w: Work):
    step = w.k.abs().amax(-1)
    return w.s * (step.roll(-1, 2) / step.clamp(min=1e-30))[:, :, None]


def _tiles_far_below(w: Work, tile: int = 16, far: float = 2.0):
    top, s = w.s.amax(-1, keepdim=True), w.s.clone()
    for first in range(0, s.shape[-1], tile):
        part = s[..., first : first + tile]
        part.masked_fill_(part.amax(-1, keepdim=True) < top - far, -math.inf)
    return s


def _best_keys(w: Work, n: int = 24):
    least = w.s.topk(min(n, w.s.shape[-1]), -1).values[..., -1:]
    return masked(w.s, w.s < least)


def _summed(w: Work, factors):
    """The denominator with other weights than the output. Shapes: factors [L]."""
    p = torch.exp(w.s - w.s.amax(-1, keepdim=True))
    return (p @ w.v / (p * factors).sum(-1, keepdim=True)).to(w.call.q.dtype)


def _zeros_up_to(w: Work, tile: int = 64):
    m = w.s.amax(-1, keepdim=True)
    p = torch.exp(w.s - m)
    more = -w.s.shape[-1] % tile
    return (p @ w.v / (p.sum(-1, keepdim=True) + more * torch.exp(-m))).to(w.call.q.dtype)


def _packed_rows(w: Work):
    """The mask of a row by its place among all rows of a KV head's group."""
    _, key = places(w)
    m, group = w.s.shape[2], w.call.group
    head = (torch.arange(w.s.shape[1]) % group)[:, None, None]
    row = (head * m + torch.arange(m)[:, None]) // group
    return _plain(w, key > row + (key.shape[-1] - m)) if w.call.causal else w.s


def _transposed_tree(w: Work, n: int = 6):
    query, key = places(w)
    last = w.s.shape[-1] - n
    hidden = torch.where((query >= last) & (key >= last), key < query, key > query)
    return _plain(w, hidden) if w.call.causal else w.s


def _dilated(w: Work, near: int = 16):
    query, key = places(w)
    return masked(w.s, (query - key > near) & ((query - key) % 2 == 1))


KEYS: dict[str, tuple[Bug, str]] = {
    "query head h reads KV head h // Hkv": (
        lambda w: _of_heads(w, lambda h, n, group: h // n),
        "of another head|KV heads|GQA",
    ),
    "KV heads halved": (
        lambda w: _of_heads(w, lambda h, n, group: h // (2 * group)),
        "of another head|KV heads|GQA",
    ),
    "V of the first head for all": (valued(_first_of_all_v), "V of another head|KV heads"),
    "first page of request 0": (_first_page_of_request_0, "request|page|keys read"),
    "odd pages are zeros": (_odd_pages, _LOST),
    "half of each page of 64 from the next": (
        keys_read(_second_half_of_the_next),
        "key|page",
    ),
    "pages of 16 taken for pages of 32": (
        keys_read(lambda w: keys_of(w) // 32 * 16 + keys_of(w) % 32),
        "key|page",
    ),
    "rows of V turned within 16": (
        valued(lambda w: read(w.v, _turned_within(w.v.shape[2], _TURN))),
        "V .*(order|offset|key|layout)",
    ),
    "pages of V reversed": (valued(_pages_of_v_reversed), "V .*(order|offset|key|page)"),
    "scales of pages of V forgotten": (
        valued(lambda w: w.v * _factors_of_pages(w)),
        "V .*factor|scale",
    ),
    "offset of V forgotten": (valued(lambda w: w.v + 0.125), "offset|added|mean"),
    "scale of the next token's K": (scored(_scales_of_tokens), "scale|K "),
    "tiles far below the maximum skipped": (scored(_tiles_far_below), _LOST + "|skipped"),
    "24 best keys alone": (scored(_best_keys), _LOST),
    "last 32 keys missing in l": (
        lambda w: _summed(w, (keys_of(w) < len(keys_of(w)) - 32) | (keys_of(w) == 0)),
        "denominator",
    ),
    "first 16 keys twice in l": (
        lambda w: _summed(w, 1.0 + (keys_of(w) < 16)),
        "denominator",
    ),
    "zeros up to the tile in l": (_zeros_up_to, "padding|sink|denominator"),
    "every second 8 keys lost by P V": (
        valued(lambda w: w.v * (keys_of(w) // 8 % 2 == 0)[:, None]),
        _LOST,
    ),
    "all see what the first query sees": (
        scored(lambda w: masked(w.s, places(w)[1] > places(w)[0][0]) if w.call.causal else w.s),
        _MASK + "|left out",
    ),
    "all see the first 40 keys": (
        scored(
            lambda w: (
                _plain(w, (places(w)[1] > places(w)[0]) & (places(w)[1] >= 40))
                if w.call.causal
                else w.s
            )
        ),
        _MASK,
    ),
    "mask by packed rows": (scored(_packed_rows), _MASK + "|left out"),
    "mask of a tree transposed": (scored(_transposed_tree), _MASK + "|left out"),
    "every second key beyond 16": (scored(_dilated), _LOST + "|mask"),
}
"""Name: the bug, and a pattern that a right name for it matches."""
