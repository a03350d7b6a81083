"""Bugs in what is read: pages, tables, packed requests, layouts, swizzles and late copies."""

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.twelfth.frame import (
    K_READ,
    LOST,
    PAGES,
    V_READ,
    where_keys,
)
from labkernels.measure.strangers.wrong import (
    Work,
    attend,
    keys_of,
    keys_read,
    read,
    right_output,
    scored,
    valued,
)


def _paged(w: Work, table, slot=lambda slot: slot, size: int = 16):
    """Return the keys read through a table that maps pages of `size` to others."""
    key = keys_of(w)
    return (table(key // size) * size + slot(key % size)) % len(key)


def _late(w: Work, of, by: int):
    """Return the numbers of the keys, `by` earlier for those that `of` takes, if there are such."""
    key = keys_of(w)
    from_ = key - by
    return torch.where(of(key) & (from_ >= 0) & (from_ < len(key)), from_, key)


def _chunks(x, order):
    """Return x [..., L, D] with chunks of 8 channels exchanged in pairs in rows of odd `order`."""
    paired = x.unflatten(-1, (-1, 2, 8)).flip(-2).flatten(-3)
    return torch.where((order % 2 == 1)[:, None], paired, x)


def _borrowed(w: Work):
    """Return K whose last 16 bytes come from the next key."""
    k = w.k.clone()
    k[..., -8:] = k[..., -8:].roll(-1, 2)
    return k


def _blocks_transposed(x):
    """Return x with its whole blocks of 8 keys and 8 channels transposed."""
    n = x.shape[2] // 8 * 8
    block = x[:, :, :n].unflatten(2, (-1, 8)).unflatten(-1, (-1, 8)).transpose(3, 5)
    return torch.cat([block.flatten(4).flatten(2, 3), x[:, :, n:]], 2)


def _pitch(x, size: int = 32, pad: int = 8):
    """Tiles are written with rows of D + 8 numbers and read with rows of D; the padding is 0."""
    d = x.shape[-1]
    out = x.clone()
    for first in range(0, x.shape[2] - size + 1, size):
        tile = torch.nn.functional.pad(x[:, :, first : first + size], (0, pad)).flatten(2)
        out[:, :, first : first + size] = tile[..., : size * d].unflatten(-1, (size, d))
    return out


def _halves(w: Work):
    """K and V of a token lie side by side, and are read as a half of K and a half of V."""
    if w.k.shape != w.v.shape:
        return right_output(w)
    both = torch.stack([w.k, w.v], 3).flatten(2, 3)
    k, v = both.chunk(2, 2)
    return attend(w.scores(k=k), v, w.call.q.dtype)


def _packed_early(w: Work, by: int = 16):
    """Each request begins 16 tokens of the packed cache earlier than it should, the first too."""
    b, n = w.k.shape[0], w.k.shape[2]
    at = (torch.arange(b)[:, None] * n + keys_of(w) - by).remainder(b * n)
    k, v = (x.transpose(0, 1).flatten(1, 2)[:, at].transpose(0, 1) for x in (w.k, w.v))
    return attend(w.scores(k=k), v, w.call.q.dtype)


def _page_layout(x, group: int, size: int = 16):
    """Pages [token, head] are read as [head, token]; the last page, if short, is right."""
    x = x[:, ::group]
    h, n = x.shape[1], x.shape[2] // size * size
    page = x[:, :, :n].unflatten(2, (-1, size)).permute(0, 2, 3, 1, 4).flatten(2, 3)
    page = page.unflatten(2, (h, size)).permute(0, 2, 1, 3, 4).flatten(2, 3)
    return torch.cat([page, x[:, :, n:]], 2).repeat_interleave(group, 1)


def _pages_exchanged(w: Work):
    k, v = (_page_layout(x, w.call.group) for x in (w.k, w.v))
    return attend(w.scores(k=k), v, w.call.q.dtype)


def _not_written(w: Work, count: int = 3):
    k, v = (where_keys(w, lambda j: j < len(j) - count, x, 0 * x) for x in (w.k, w.v))
    return attend(w.scores(k=k), v, w.call.q.dtype)


def _v_at(index) -> Bug:
    return valued(lambda w: read(w.v, index(w)))


def _k_at(index) -> Bug:
    return scored(lambda w: w.scores(k=read(w.k, index(w))))


_K_LAYOUT = r"(?<!and )\bK (?:in another layout|transposed)"
_V_LAYOUT = r"(?<!and )\bV (?:in another layout|transposed)"
WRONG: dict[str, tuple[Bug, str]] = {
    "a page table of int64 read as int32": (
        keys_read(lambda w: _paged(w, lambda page: (page // 2) * (page % 2 == 0))),
        PAGES,
    ),
    "pages of 16 counted as pages of 24": (
        keys_read(lambda w: keys_of(w) // 24 * 16 + keys_of(w) % 24),
        PAGES,
    ),
    "slots of a page at twice their number": (
        keys_read(lambda w: _paged(w, lambda page: page, lambda slot: 2 * slot % 16)),
        PAGES,
    ),
    "V through a table with pages in pairs exchanged": (
        _v_at(lambda w: _paged(w, lambda page: page ^ 1)),
        V_READ,
    ),
    "K of odd pages is still the page before": (
        _k_at(lambda w: _late(w, lambda j: j // 16 % 2 == 1, 16)),
        K_READ,
    ),
    "last 16 bytes of K from the next key": (
        scored(lambda w: w.scores(k=_borrowed(w))),
        f"{K_READ}|channels",
    ),
    "K swizzled by half the row's number": (
        scored(lambda w: w.scores(k=_chunks(w.k, keys_of(w) ^ (keys_of(w) // 2)))),
        f"{K_READ}|{_K_LAYOUT}|channels|swizzle",
    ),
    "swizzle of V left out in four of eight rows": (
        valued(lambda w: _chunks(w.v, keys_of(w) // 4)),
        f"{V_READ}|{_V_LAYOUT}|channels|swizzle",
    ),
    "8 x 8 blocks of V loaded without a transpose": (
        valued(lambda w: _blocks_transposed(w.v)),
        f"{V_READ}|{_V_LAYOUT}",
    ),
    "rows of K padded by 8 where they are written alone": (
        scored(lambda w: w.scores(k=_pitch(w.k))),
        f"{K_READ}|{_K_LAYOUT}",
    ),
    "K and V side by side read as two halves": (
        _halves,
        f"{PAGES}|K and V (?:exchanged|in another layout)|K read for V|V read for K",
    ),
    "requests begin 16 tokens early": (_packed_early, f"{PAGES}|K and V of another request"),
    "tokens and heads of a page exchanged": (
        _pages_exchanged,
        f"{PAGES}|K and V (?:of another head|in another layout)",
    ),
    "last four rows of each tile of V come late": (
        _v_at(lambda w: _late(w, lambda j: j % 32 >= 28, 32)),
        f"{V_READ}|stale",
    ),
    "a half of each other tile of K overwritten by a later one": (
        _k_at(lambda w: _late(w, lambda j: j % 64 // 16 == 1, -64)),
        f"{K_READ}|stale",
    ),
    "K and V of the newest three tokens not yet stored": (
        _not_written,
        f"(?:keys?|K and V) .*as 0|padding|of score 0|never written|uninitialised|stale|{LOST}",
    ),
    "row of V in six bits": (_v_at(lambda w: keys_of(w) % 64), rf"{V_READ}|(?<!and )\bV counted"),
}
"""Name: the bug, and a pattern that a right name for it matches."""
