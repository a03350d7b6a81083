"""Which pages of a cache a rank holds."""

import torch

from labkernels.kernels.caches.paged import PagedKV
from labkernels.units import require_choice, require_int

SPLITS = ("contiguous", "interleaved")


def shard(cache: PagedKV, rank: int, ranks: int, by: str = "contiguous") -> PagedKV:
    """Return the part of a cache that one rank attends to: whole pages, in the pools as they lie.

    contiguous: each rank has an equal number of following pages of every request; interleaved: page
    i is of rank i mod ranks, so that a request that grows stays balanced. Page tables have equal
    widths on all ranks, so that all plans are alike. The lengths are computed where they lie.
    Raises: ValueError naming the argument, its value and what is allowed.

    >>> pages, table = torch.randn(2, 5, 16, 1, 64).half(), torch.tensor([[0, 1, 2, 3, 4]]).int()
    >>> cache = PagedKV(*pages, table, torch.tensor([70]).int())  # 4 pages and 6 keys
    >>> [shard(cache, rank, 2, "interleaved").kv_len.item() for rank in range(2)]
    [38, 32]
    >>> [shard(cache, rank, 2).page_table.tolist() for rank in range(2)]
    [[[0, 1, 2]], [[3, 4, 4]]]
    """
    require_choice("by", by, SPLITS)
    require_int("ranks", ranks, minimum=1)
    if not 0 <= rank < ranks:
        raise ValueError(f"rank = {rank}, allowed: 0 to {ranks - 1}")
    table, size = cache.page_table, cache.page_size
    width = max(1, -(-table.shape[1] // ranks))
    of_request = -(-cache.kv_len // size)[:, None]  # pages in use
    slots = torch.arange(width, dtype=torch.int32, device=table.device)[None]
    if by == "contiguous":
        share = -(-of_request // ranks)
        first, step = rank * share, 1
    else:
        share = torch.full_like(of_request, width)
        first, step = torch.full_like(of_request, rank), ranks
    wanted = first + slots * step
    used = (slots < share) & (wanted < of_request)
    keys = torch.where(used, (cache.kv_len[:, None] - wanted * size).clamp(0, size), 0)
    last = max(table.shape[1] - 1, 0)
    pages = table.gather(1, wanted.clamp(max=last).long()) if table.shape[1] else slots[:0]
    return PagedKV(cache.k, cache.v, pages.contiguous(), keys.sum(1, dtype=torch.int32))
