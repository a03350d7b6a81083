"""Which pages of a cache a rank holds."""

from dataclasses import replace
from typing import TypeVar

import torch

from labkernels.kernels.caches.paged import PagedHeads
from labkernels.units import require_choice, require_int

SPLITS = ("contiguous", "interleaved")
Pages = TypeVar("Pages", bound=PagedHeads)


def shard(cache: Pages, rank: int, ranks: int, by: str = "contiguous") -> Pages:
    """Return the part of a cache that one rank attends to: whole pages, in the pools as they lie.

    contiguous: equally many following pages of each request; interleaved: page i is of rank
    i mod ranks, so that a request that grows stays balanced. Page tables have equal widths, so that
    plans are alike. Raises: ValueError naming the argument, its value and what is allowed.

    >>> from labkernels.kernels.caches.paged import PagedKV
    >>> pages, table = torch.randn(2, 5, 16, 1, 64).half(), torch.tensor([[0, 1, 2, 3, 4]]).int()
    >>> cache = PagedKV(*pages, table, torch.tensor([70]).int())  # 4 pages and 6 keys
    >>> [shard(cache, rank, 2, "interleaved").kv_len.item() for rank in range(2)]
    [38, 32]
    """
    require_choice("by", by, SPLITS)
    require_int("rank", rank, maximum=require_int("ranks", ranks, minimum=1) - 1)
    table, size = cache.page_table, cache.page_size
    width = max(1, -(-table.shape[1] // ranks))
    in_use = -(-cache.kv_len // size)[:, None]  # pages of each request
    slots = torch.arange(width, dtype=torch.int32, device=table.device)[None]
    share = -(-in_use // ranks) if by == "contiguous" else torch.full_like(in_use, width)
    wanted = rank * share + slots if by == "contiguous" else rank + slots * ranks + 0 * in_use
    keys = (cache.kv_len[:, None] - wanted * size).clamp(0, size) * (slots < share)
    pages = table.gather(1, wanted.clamp(max=max(table.shape[1] - 1, 0)).long())
    return replace(cache, page_table=pages.contiguous(), kv_len=keys.sum(1, dtype=torch.int32))
