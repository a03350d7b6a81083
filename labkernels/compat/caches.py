"""Page tables for the caches that other libraries take: lists of pages, and rows without pages."""

import math

import torch

from labkernels.compat.arguments import refusal, require_dims
from labkernels.kernels.caches.paged import PagedKV, QuantizedKV
from labkernels.kernels.checks import KV_DTYPES, resolved

MOST_KEYS = 256  # keys per page, the most that PagedKV takes


def page_table(indptr: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Return the table of requests whose pages lie one after another in `indices`; it reads both.

    Shapes: indptr [batch + 1], indices [indptr[-1]] -> [batch, most pages of a request] int32.
    Raises: ValueError unless indptr ascends from 0, and has all its pages in indices.

    >>> page_table(torch.tensor([0, 3, 4]), torch.tensor([5, 0, 7, 2]))
    tensor([[5, 0, 7],
            [2, 0, 0]], dtype=torch.int32)
    """
    ends = indptr.tolist()
    if ends != sorted(ends) or ends[0] != 0 or ends[-1] > len(indices):
        allowed = f"0 and numbers that ascend to at most {len(indices)}, the indices"
        raise ValueError(f"indptr = {ends}, allowed: {allowed}")
    lists = indices.cpu().int()[: ends[-1]].tensor_split(ends[1:-1])
    return torch.nn.utils.rnn.pad_sequence(lists, batch_first=True)


def kv_lengths(indptr: torch.Tensor, last_page_len: torch.Tensor, page_size: int) -> torch.Tensor:
    """Return the keys of each request [batch] int32, of which only the last page may have fewer."""
    pages, last = indptr.cpu().diff(), last_page_len.cpu()
    if last.shape != pages.shape:
        allowed = f"{len(pages)}, one less than len(indptr)"
        raise ValueError(f"len(last_page_len) = {len(last)}, allowed: {allowed}")
    return ((pages - 1).clamp(min=0) * page_size + last).int()


def pools(
    paged_kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor], kv_layout: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the pools of K and V, [pages, page_size, kv_heads, head_dim] each, to be read.

    They are views, but for tensors whose negation torch has put off.

    Shapes: one tensor [pages, 2, ...] or two tensors [pages, ...], where ... is [page_size,
    kv_heads, head_dim] in layout NHD, and [kv_heads, page_size, head_dim] in layout HND; two
    tensors may also have no pages.
    """
    if isinstance(paged_kv_cache, torch.Tensor):
        require_dims(paged_kv_cache=(paged_kv_cache, "[pages, 2, page_size, kv_heads, head_dim]"))
        k, v = paged_kv_cache.unbind(1)
    else:
        k, v = paged_kv_cache
    k, v = resolved(k), resolved(v)
    return (k.transpose(-3, -2), v.transpose(-3, -2)) if kv_layout == "HND" else (k, v)


def in_pages(
    k: torch.Tensor,
    v: torch.Tensor,
    table: torch.Tensor,
    kv_len: torch.Tensor,
    **scales: float | torch.Tensor | None,
) -> PagedKV | QuantizedKV:
    """Return the cache of two pools; of 8 bits with k_scale and v_scale, which are 1 by default.

    A scale is a number, or a tensor of one number or of one for each KV head.
    """
    if k.dtype in KV_DTYPES:
        heads = {}
        for name, scale in scales.items():
            flat = torch.as_tensor(1.0 if scale is None else scale).float().reshape(-1)
            if flat.numel() not in (1, k.shape[2]):
                raise refusal(name, scale, f"a number, or {k.shape[2]}, the KV heads")
            heads[name] = flat.to(k.device).expand(k.shape[2])
        return QuantizedKV(k, v, table, kv_len, **heads)
    for name, scale in scales.items():
        if scale is not None and not (isinstance(scale, float | int) and scale == 1):
            raise refusal(name, scale, f"None, 1, with a cache in {k.dtype}")
    return PagedKV(k, v, table, kv_len)


def contiguous(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    kv_len: int | torch.Tensor,
    requests: torch.Tensor | None = None,
) -> PagedKV:
    """Return a cache over the memory of K and V that have no pages: nothing is copied.

    Pages have as many keys as divide the length of a request, up to 256; a prime length, which has
    pages of one key, is the slowest. requests: which rows of K and V are meant, by default all.
    Shapes: k_cache, v_cache [batch, keys, kv_heads, head_dim]; kv_len one number or, as requests,
    [batch] int32.
    Raises: ValueError unless the requests of K and V lie equally far apart.

    >>> k, v = torch.randn(2, 3, 96, 4, 64).half()  # 3 requests of up to 96 keys
    >>> cache = contiguous(k, v, torch.tensor([5, 96, 7]).int())
    >>> cache.page_size, torch.equal(cache.of_request(1)[0], k[1])
    (96, True)
    """
    require_dims(
        k_cache=(k_cache, "[batch, keys, kv_heads, head_dim]"),
        v_cache=(v_cache, "[batch, keys, kv_heads, head_dim]"),
    )
    batch, keys = k_cache.shape[:2]
    (k_apart, k_row), (v_apart, v_row) = (x.stride()[:2] for x in (k_cache, v_cache))
    alike = k_row and k_apart % k_row == 0 and k_apart * v_row == v_apart * k_row
    if batch > 1 and not alike:
        words = f"k_cache.stride() = {k_cache.stride()}, v_cache.stride() = {v_cache.stride()}"
        raise ValueError(f"{words}, allowed: requests that lie a whole number of keys apart, alike")
    rows = k_apart // k_row if batch > 1 else keys
    common = math.gcd(keys, rows)
    size = max(n for n in range(1, MOST_KEYS + 1) if common % n == 0)
    per_request = rows // size
    pages = (batch - 1) * per_request + keys // size
    k, v = (
        x.as_strided((pages, size, *x.shape[2:]), (size * x.stride(1), *x.stride()[1:]))
        for x in (k_cache, v_cache)
    )
    device = k.device
    first = torch.arange(batch, device=device) if requests is None else requests
    table = first[:, None] * per_request + torch.arange(keys // size, device=device)
    if isinstance(kv_len, int):
        kv_len = torch.full((len(table),), kv_len, dtype=torch.int32, device=device)
    return PagedKV(k, v, table.int(), kv_len)
