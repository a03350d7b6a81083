"""Bugs in what is read of a paged or packed cache: tables, offsets, strides, layouts, lengths."""

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.eleventh.parts import (
    CHANNELS,
    K_ALONE,
    K_LAYOUT,
    KEYS,
    LOST,
    V_ALONE,
    V_LAYOUT,
    V_MISSING,
    at,
    from_cache,
    in_whole,
)
from labkernels.measure.strangers.wrong import Work, attend, keys_of, masked, scored


def _both(read):
    """Return a bug that reads K and V in the same wrong way."""
    return from_cache(read, read)


def _pages_before(w: Work, x, pages: int = 1, size: int = 16):
    """Each request reads its table from so many pages before, times its number."""
    b, _, n, _ = x.shape
    pool = x.transpose(0, 1).flatten(1, 2)
    start = torch.arange(b)[:, None] * (n - pages * size) + torch.arange(n)
    return pool[:, start.clamp(min=0)].transpose(0, 1)


def _with_keys_of_the_next(w: Work, count: int = 5):
    """Requests see the first keys of the request behind them; the last one sees its own alone."""
    if w.k.shape[0] == 1:
        return attend(w.s, w.v, w.call.q.dtype)
    k = torch.cat([w.k, w.k.roll(-1, 0)[:, :, :count]], 2)
    v = torch.cat([w.v, w.v.roll(-1, 0)[:, :, :count]], 2)
    more = w.q @ k[:, :, w.k.shape[2] :].mT * w.call.scale
    more[-1] = -torch.inf
    return attend(torch.cat([w.s, more], -1), v, w.call.q.dtype)


def _turned_pages(w: Work, x, size: int = 16):
    """Pages written as [D, size], read as [size, D]."""
    return in_whole(x, size, lambda p: p.mT.flatten(-2).unflatten(-1, p.shape[-2:]))


def _packs_of_four(w: Work, x, size: int = 16):
    """Pages written as [D / 8, size, 8], read as [D / 4, size, 4]."""

    def page(p):
        d = p.shape[-1]
        written = p.unflatten(-1, (d // 8, 8)).transpose(-2, -3).flatten(-3)
        return written.unflatten(-1, (d // 4, size, 4)).transpose(-2, -3).flatten(-2)

    return in_whole(x, size, page)


def _one_slot_early(w: Work, x):
    """New keys are written one slot early, and the last slot holds 0."""
    m = min(w.q.shape[2], x.shape[2] - 1)
    if m == 0:
        return torch.zeros_like(x)
    x = x.clone()
    x[:, :, -m - 1 : -1] = x[:, :, -m:].clone()
    x[:, :, -1] = 0
    return x


def _rows_with_scales(w: Work, x, more: int = 4):
    """Rows lie beside 4 numbers of 1, and the kernel's stride of a row leaves them out."""
    n, d = x.shape[2:]
    padded = torch.cat([x, torch.ones_like(x[..., :more])], -1).flatten(2)
    return padded[..., : n * d].unflatten(-1, (n, d))


def _prefix_of_first(w: Work, x, keys: int = 40):
    """The first keys of all requests are those of request 0, as after a collision of hashes."""
    x = x.clone()
    x[:, :, :keys] = x[:1, :, :keys]
    return x


def _zeroed(w: Work, x, tile: int = 64, first: int = 48):
    """A predicate zero-fills the last quarter of each tile."""
    return x.masked_fill((keys_of(w) % tile >= first)[:, None], 0.0)


def _without_weakest_page(w: Work, size: int = 16):
    """Leave out each row's page with the smallest of maxima, of at least two pages."""
    n = w.s.shape[-1] // size
    if n < 2:
        return w.s
    best = w.s[..., : n * size].unflatten(-1, (n, size)).amax(-1)
    worst = best.masked_fill(best == -torch.inf, torch.inf).argmin(-1, keepdim=True)
    only = (best > -torch.inf).sum(-1, keepdim=True) < 2
    return masked(w.s, (keys_of(w) // size == worst) & ~only)


WRONG: dict[str, tuple[Bug, str]] = {
    "a page table that starts a page early for each request": (
        _both(_pages_before),
        f"{KEYS}|^K and V of another request",
    ),
    "V's table lags a page in the last page": (
        from_cache(v=at(lambda w, j: torch.where(j // 16 == j[-1] // 16, j - 16, j))),
        V_ALONE,
    ),
    "keys of the next request behind the last one": (
        _with_keys_of_the_next,
        "past the end|padding: keys",
    ),
    "page numbers of three bits, pages of 8": (
        _both(at(lambda w, j: j % 64)),
        f"{KEYS}|keys read again",
    ),
    "V pages transposed": (from_cache(v=_turned_pages), V_LAYOUT),
    "K in packs of 8 channels, read in packs of 4": (
        from_cache(k=_packs_of_four),
        f"{K_LAYOUT}|channels of Q or K",
    ),
    "the prefix of request 0 for all": (
        _both(_prefix_of_first),
        f"{KEYS}|^K and V of another request",
    ),
    "new keys appended one slot early": (
        _both(_one_slot_early),
        f"{KEYS}|keys? read as 0|^K and V read as 0|{LOST}",
    ),
    "V's base one element late": (
        from_cache(v=lambda w, x: x.flatten(2).roll(-1, 2).view_as(x)),
        f"(?<!and )V read (with|some)|{CHANNELS}",
    ),
    "rows of K with their scales, read without": (
        from_cache(k=_rows_with_scales),
        "(?<!and )K read (by|with|some)",
    ),
    "V zero-filled in the last quarter of tiles": (from_cache(v=_zeroed), V_MISSING),
    "both warps read the lower half of K's pages": (
        from_cache(k=at(lambda w, j: j - j % 32 // 16 * 16)),
        f"{K_ALONE}|(?<!and )K read twice",
    ),
    "pages of K moved by a compaction, V's not": (
        from_cache(k=at(lambda w, j: torch.where(j < min(64, len(j) // 16 * 16), j ^ 16, j))),
        K_ALONE,
    ),
    "the weakest page left out of each row": (
        scored(_without_weakest_page),
        f"{LOST}|weights dropped|another mask|weights of keys",
    ),
}
"""Name: the bug, and a pattern that a right name for it matches."""
