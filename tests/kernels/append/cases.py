"""Caches to append to, with the new rows, and with what the caches must hold afterwards."""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch

from labkernels.kernels.caches.paged import PagedKV, QuantizedKV
from tests.kernels.decode.cases import PAD, Case, bits, decode_case

# Keys before and new keys of each request: empty ones, page boundaries, none at all.
GROWTHS = ((0, 0), (0, 5), (7, 0), (15, 1), (16, 40), (33, 1), (0, 300))


@dataclass(frozen=True, eq=False)
class AppendCase:
    """A cache and the rows to append. `whole` is a cache that held all keys from the beginning.

    `storage` holds the whole buffers of the pools, the table and the lengths, as `whole.storage`
    does; what no request owns is NaN in both.
    """

    cache: PagedKV
    k_new: torch.Tensor
    v_new: torch.Tensor
    cu_seqlens: torch.Tensor
    whole: Case
    storage: tuple[torch.Tensor, ...]

    @property
    def arguments(self) -> tuple:
        """The arguments of ops.append."""
        return self.cache, self.k_new, self.v_new, self.cu_seqlens


def append_case(*growths, **options) -> AppendCase:
    """Return a case of (keys before, new keys) per request; options as in `decode_case`."""
    before, new = zip(*growths, strict=True)
    after = tuple(old + n for old, n in growths)
    whole = decode_case(after, **options)
    fresh = decode_case.__wrapped__(after, **options)  # tensors of its own, which may change
    cache = fresh.cache
    rows = []
    for i, (old, end) in enumerate(zip(before, after, strict=True)):
        key = torch.arange(old, end, device=cache.k.device)
        page = cache.page_table[i, key // cache.page_size].long()
        token = key % cache.page_size
        rows.append([pool[page, token].clone() for pool in (cache.k, cache.v)])
        for pool in (cache.k, cache.v):
            pool[page, token] = math.nan
    cache.kv_len.copy_(torch.tensor(before))
    k_new, v_new = (_with_gaps(torch.cat(side)) for side in zip(*rows, strict=True))
    sums = torch.tensor([0, *new]).cumsum(0).int().to(cache.k.device)
    return AppendCase(cache, k_new, v_new, sums, whole, fresh.storage)


def check_appended(case: AppendCase) -> None:
    """Assert that the cache equals the one that held all keys from the beginning, bit for bit."""
    for found, expected in zip(case.storage, case.whole.storage, strict=True):
        assert torch.equal(bits(found), bits(expected))


def check_codes(cache: QuantizedKV, before, k_new, v_new, ends) -> None:
    """Assert that new rows have the codes of torch's own rounding, and nothing else changed."""
    most, ends = torch.finfo(cache.k.dtype).max, ends.tolist()
    sides = (cache.pools, before, (k_new, v_new), cache.scales())
    for found, was, rows, scale in zip(*sides, strict=True):
        expected = was.float()
        for request, (first, end) in enumerate(pairwise(ends)):
            page, slot = (x[len(x) - (end - first) :] for x in cache.places(request))
            by = scale[page, slot // cache.keys_per_scale] if cache.of_blocks else scale
            expected[page, slot] = (rows[first:end].float() / by[..., None]).clamp(-most, most)
        same = bits(found) == bits(expected.to(found.dtype))
        assert bool((same | (found.float().isnan() & expected.isnan())).all())


def copies(case: AppendCase) -> list[torch.Tensor]:
    """Return copies of all that an append could write."""
    return [bits(tensor).clone() for tensor in case.storage]


def check_untouched(case: AppendCase, before: list[torch.Tensor]) -> None:
    """Assert that everything equals its copy."""
    for found, expected in zip(case.storage, before, strict=True):
        assert torch.equal(bits(found), expected), "something was written"


def _with_gaps(rows: torch.Tensor) -> torch.Tensor:
    """Return the same rows in a buffer whose gaps are NaN."""
    total, heads, dim = rows.shape
    wide = torch.full((total, heads + 1, dim + PAD), math.nan, dtype=rows.dtype, device=rows.device)
    wide[:, :heads, :dim] = rows
    return wide[:, :heads, :dim]
