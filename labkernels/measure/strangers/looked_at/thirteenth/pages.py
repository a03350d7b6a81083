"""Bugs of the cache: page tables, slots, offsets of requests, heads and layouts of pools."""

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.thirteenth.frame import (
    BOTH,
    K_READ,
    LOST,
    READ,
    REQUEST,
    TWICE,
    V_READ,
    K,
    V,
    by_kv_head,
    of_both,
    of_k,
    of_v,
    whole,
)
from labkernels.measure.strangers.wrong import Work, keys_of, keys_read, masked, scored

_PAGE = 16


def _where(x, some, other):
    """Return x, with another tensor's rows at some keys."""
    return torch.where(some[:, None], other, x)


def _request_before(w: Work, x, some):
    return _where(x, some, x.roll(1, 0))


def _forked(w: Work, x):
    """Slots 8 to 15 of a shared page were not copied: they have another request's keys."""
    page, slot = keys_of(w) // _PAGE, keys_of(w) % _PAGE
    return _request_before(w, x, (page == page[-1] // 2) & (slot >= 8))


def _flat(w: Work, x, index):
    """Read a pool [B * L] of all requests at an index of each request and key."""
    b, n = x.shape[0], x.shape[2]
    pool = x.transpose(0, 1).flatten(1, 2)
    return pool[:, index(torch.arange(b)[:, None], torch.arange(n)) % (b * n)].transpose(0, 1)


def _paged(x, change):
    """Change the whole pages of x: change(pages [B, P, Hkv, page, D]) has as many numbers."""
    b, h, n, d = x.shape
    whole = n // _PAGE * _PAGE
    if not whole:
        return x
    pages = x[:, :, :whole].reshape(b, h, -1, _PAGE, d).transpose(1, 2)
    new = change(pages).reshape(pages.shape).transpose(1, 2).reshape(b, h, whole, d)
    return torch.cat([new, x[:, :, whole:]], 2)


def _slots_first(w: Work, x):
    """Pages are stored [slot, head, channel] and read [head, slot, channel]."""
    heads = by_kv_head(w, x)[:, :, 0]
    return _paged(heads, lambda p: p.transpose(2, 3).contiguous()).repeat_interleave(
        w.call.group, 1
    )


def _by_eights(w: Work, x):
    """Pages are stored [channels / 8, slot, 8] and read [slot, channel]."""

    def packed(pages):
        return pages.unflatten(-1, (-1, 8)).transpose(3, 4).contiguous()

    return whole(x, 8, lambda y: _paged(y, packed))


def _appended_late(w: Work, x):
    """New keys lie one slot too late; the first of their slots was never written."""
    first, at = w.k.shape[2] - w.q.shape[2], keys_of(w)
    moved = _where(x, at > first, x.roll(1, 2))
    return _where(moved, at == first, torch.zeros_like(x))


def _pitch(w: Work, x):
    """Rows are read as if they lay 8 channels further apart."""
    n, d = x.shape[2:]
    at = torch.arange(n)[:, None] * (d + 8) + torch.arange(d)
    return x.flatten(2)[:, :, at % (n * d)]


def _page(w: Work):
    return keys_of(w) // _PAGE


def _slot(w: Work):
    return keys_of(w) % _PAGE


WRONG: dict[str, tuple[Bug, str]] = {
    "pages of 16 looked up in a table of pages of 32": (
        keys_read(lambda w: (2 * _PAGE * _page(w) + _slot(w)) % w.k.shape[2]),
        READ,
    ),
    "V's page index runs twice as fast": (
        of_v(lambda w, v: v[:, :, (2 * _PAGE * _page(w) + _slot(w)) % v.shape[2]]),
        V_READ,
    ),
    "a bit of each page's number is lost": (
        keys_read(lambda w: (_page(w) & ~4) * _PAGE + _slot(w)),
        rf"{READ}|{TWICE}",
    ),
    "page offsets overflow, and later pages are the first one": (
        keys_read(lambda w: torch.where(_page(w) < 7, keys_of(w), _slot(w))),
        rf"{READ}|{TWICE}",
    ),
    "length of the last page one short": (
        scored(lambda w: masked(w.s, (keys_of(w) == w.k.shape[2] - 1) & (w.k.shape[2] > 1))),
        LOST,
    ),
    "padding tokens written to the last slot": (
        keys_read(lambda w: torch.where(keys_of(w) == w.k.shape[2] - 1, 0, keys_of(w))),
        rf"{READ}|{TWICE}|{LOST}",
    ),
    "new tokens stored a slot late": (
        of_both(_appended_late),
        rf"{READ}|{BOTH} read as 0|{LOST}",
    ),
    "a page that was evicted and cleared": (
        of_both(lambda w, x: _where(x, _page(w) == _page(w)[-1] // 2, torch.zeros_like(x))),
        rf"{BOTH} read as 0|wrong page|page left out|padding",
    ),
    "a prefix cached for the request before": (
        of_both(lambda w, x: _request_before(w, x, keys_of(w) < 32)),
        REQUEST,
    ),
    "a forked page copied up to its middle": (of_both(_forked), REQUEST),
    "all beams read the first beam's later half": (
        of_both(lambda w, x: _where(x, keys_of(w) >= x.shape[2] // 2, x[:1])),
        REQUEST,
    ),
    "offsets of queries taken for those of keys": (
        of_both(lambda w, x: _flat(w, x, lambda b, at: b * w.q.shape[2] + at)),
        REQUEST,
    ),
    "a stride of the page table a page short": (
        of_both(lambda w, x: _flat(w, x, lambda b, at: b * (x.shape[2] - _PAGE) + at)),
        REQUEST,
    ),
    "pages of slots first read as heads first": (
        of_both(_slots_first),
        rf"\bK and V in another|{READ}",
    ),
    "K's pages packed by eights and read plain": (of_k(_by_eights), rf"{K_READ}|{K} in another"),
    "V's pages transposed": (
        of_v(lambda w, v: _paged(v, lambda p: p.mT.contiguous())),
        rf"{V_READ}|{V} (in another|transposed)",
    ),
    "rows of K eight channels further apart": (of_k(_pitch), K_READ),
    "V by the pointer of the next KV head": (
        of_v(lambda w, v: v.roll(-w.call.group, 1)),
        rf"{V} of another head|{V_READ}",
    ),
}
"""Name: the bug, and a pattern that a right name for it matches."""
