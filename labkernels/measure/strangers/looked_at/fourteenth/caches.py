"""Bugs of a cache in pages: tables, slots, forks, beams, drafts, and layouts of pools."""

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.fourteenth import words
from labkernels.measure.strangers.looked_at.fourteenth.frame import (
    PAGE,
    for_queries,
    hiding,
    keys,
    kv_heads,
    of_both,
    of_k,
    of_v,
    paged,
    unpaged,
    where_keys,
)
from labkernels.measure.strangers.wrong import Work, attend, keys_read


def _attend_too(w: Work, k, v):
    """Attend to other keys as well, which every row sees."""
    s = torch.cat([w.s, w.q @ k.mT * w.call.scale], -1)
    return attend(s, torch.cat([w.v, v], 2), w.call.q.dtype)


def _page_too_many(w: Work):
    return _attend_too(w, *(x.roll(1, 0)[:, :, :PAGE] for x in (w.k, w.v)))


def _empty_slots(w: Work):
    n = -w.k.shape[2] % 32
    empty = (torch.zeros_like(x[:, :, :1]).expand(-1, -1, n, -1) for x in (w.k, w.v))
    return _attend_too(w, *empty)


def _last_page(w: Work):
    """The keys of the last page that has a key."""
    return keys(w) >= (w.k.shape[2] - 1) // PAGE * PAGE


def _of_the_request_before(chosen):
    """Read the chosen keys from the request before."""
    return lambda w, x: where_keys(chosen(w), x.roll(1, 0), x)


def _a_slot_early(w: Work, v):
    m, n = w.s.shape[-2:]
    v = v.clone()
    first = max(n - m - 1, 0)
    v[:, :, first : n - 1] = v[:, :, first + 1 :].clone()
    v[:, :, n - 1] = 0
    return v


def _rows_one_short(w: Work, x):
    pages = paged(x)
    b, _, n = pages.shape[:3]
    all_pages = pages.transpose(0, 1).flatten(1, 2)
    entry = torch.arange(b)[:, None] * max(n - 1, 1) + torch.arange(n)
    return unpaged(all_pages[:, entry].transpose(0, 1), x.shape[2])


def _colliding(w: Work):
    page = keys(w) // PAGE
    return torch.where(page % 5 == 4, keys(w) - 3 * PAGE, keys(w))


def _as_columns(w: Work, x):
    pages = paged(x)
    return unpaged(pages.mT.reshape(pages.shape), x.shape[2])


def _by_eights(w: Work, x):
    pages = paged(x)
    d = x.shape[-1] // 8 * 8
    stored = pages[..., :d].unflatten(-1, (-1, 8)).transpose(-2, -3)
    read = stored.reshape(*pages.shape[:-1], d)
    return unpaged(torch.cat([read, pages[..., d:]], -1), x.shape[2])


def _heads_before_slots(w: Work, x):
    pages = paged(kv_heads(w, x))  # [B, Hkv, pages, slots, D]
    b, h, n, slots, d = pages.shape
    read = pages.permute(0, 2, 3, 1, 4).reshape(b, n, h, slots, d).transpose(1, 2)
    return for_queries(w, unpaged(read, x.shape[2]))


def _between(first, last):
    return lambda w: (keys(w) >= first(w)) & (keys(w) < last(w))


def _length(w: Work) -> int:
    return w.k.shape[2]


def _before_the_queries(w: Work) -> int:
    return w.k.shape[2] - w.q.shape[2]


WRONG: dict[str, tuple[Bug, str]] = {
    "a page too many, of another request": (_page_too_many, r"past the end"),
    "empty slots of the last page of 32 attended": (_empty_slots, words.EMPTY),
    "V's table of the request before from the third page on": (
        of_v(_of_the_request_before(lambda w: keys(w) >= 2 * PAGE)),
        words.V_REQUEST,
    ),
    "a fork's last page not copied": (of_both(_of_the_request_before(_last_page)), words.REQUEST),
    "a fork copies K of its last 24 keys, but not V": (
        of_v(_of_the_request_before(lambda w: keys(w) >= _length(w) - 24)),
        words.V_REQUEST,
    ),
    "pages of 16 addressed as pages of 32": (
        keys_read(lambda w: keys(w) // 32 * 16 + keys(w) % 32),
        words.READ,
    ),
    "V of new tokens a slot early": (of_v(_a_slot_early), words.V_NEW),
    "every fourth page of V not swapped in": (
        of_v(lambda w, v: where_keys(keys(w) // PAGE % 4 == 2, 0 * v, v)),
        r"(?<!and )\bV (read as 0|by a factor)|in the output alone",
    ),
    "third pages of requests exchanged when memory was tidied": (
        of_both(_of_the_request_before(lambda w: keys(w) // PAGE == 2)),
        words.REQUEST,
    ),
    "rows of the block table one entry short": (of_both(_rows_one_short), words.TABLE),
    "pages found by a colliding hash": (keys_read(_colliding), words.READ),
    "middle third evicted": (
        hiding(_between(lambda w: _length(w) // 3, lambda w: 2 * _length(w) // 3)),
        words.LOST,
    ),
    "K's pages stored as columns": (of_k(_as_columns), words.K_CHANNELS),
    "K's pages packed by eights of channels, read as rows": (of_k(_by_eights), words.K_CHANNELS),
    "V's pages with heads before slots": (of_v(_heads_before_slots), words.V_READ),
    "three rejected drafts left in the cache": (
        of_both(
            _of_the_request_before(
                _between(lambda w: _before_the_queries(w) - 3, _before_the_queries)
            )
        ),
        words.REQUEST,
    ),
    "four tokens too many of another's prefix": (
        of_both(
            _of_the_request_before(
                _between(lambda w: _length(w) // 2, lambda w: _length(w) // 2 + 4)
            )
        ),
        words.REQUEST,
    ),
}
