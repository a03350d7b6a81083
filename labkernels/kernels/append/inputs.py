"""Random inputs of an append workload, the same for every implementation."""

from dataclasses import dataclass

import torch

from labkernels.kernels.append.workload import Append
from labkernels.kernels.caches.paged import PagedHeads, PagedKV, QuantizedKV
from labkernels.kernels.checks import KV_DTYPES
from labkernels.kernels.random_inputs import DTYPES, Draw, int32, n_pages, scattered, sums

SCALE = 0.03  # of a cache of 8 bits: no number of the rows, which are around 1, leaves the codes


@dataclass(frozen=True, eq=False)
class AppendInputs:
    """A cache, new rows, and the place of each row in the cache.

    Shapes: k_new, v_new [total_new, Hkv, D]; cu_seqlens_new [B + 1]; slots [total_new] int64, the
    place of each new row, counted through the pool. The pools hold NaN.
    """

    workload: Append
    cache: PagedHeads
    k_new: torch.Tensor
    v_new: torch.Tensor
    cu_seqlens_new: torch.Tensor
    slots: torch.Tensor

    @property
    def arguments(self) -> tuple:
        """The arguments of the verb, in its order."""
        return self.cache, self.k_new, self.v_new, self.cu_seqlens_new

    def holds_the_rows(self) -> bool:
        """Return whether the pools hold the new rows, bit for bit, and NaN everywhere else.

        Of a cache of 8 bits, the rows are divided by their scale in fp32 and rounded.
        """
        for pool, rows in ((self.cache.k, self.k_new), (self.cache.v, self.v_new)):
            if isinstance(self.cache, QuantizedKV):
                rows = (rows.float() / self.cache.k_scale[:1]).to(pool.dtype).float()
            flat = pool.flatten(0, 1).to(rows.dtype)
            untouched = torch.ones(len(flat), dtype=torch.bool, device=flat.device)
            untouched[self.slots] = False
            if not torch.equal(flat[self.slots], rows) or not flat[untouched].isnan().all():
                return False
        return True


def append_inputs(workload: Append, draw: Draw) -> AppendInputs:
    """Draw random rows, and a cache of NaN whose pages lie in random order.

    Raises: ValueError if the workload's dtype is not fp16 or bf16.
    """
    w, device = workload, draw.device
    total, heads = sum(w.new_lens), (w.kv_heads, w.head_dim)
    k_new, v_new = (draw.tensor(w.dtype, total, *heads) for _ in range(2))
    lengths = [before + new for before, new in zip(w.kv_lens, w.new_lens, strict=True)]
    shape = (n_pages(lengths, w.page_size), w.page_size, *heads)
    kind = (DTYPES | {name: kind for kind, name in KV_DTYPES.items()})[w.kv_dtype or w.dtype]
    pools = (torch.full(shape, torch.nan, device=device).to(kind) for _ in range(2))
    table = scattered(lengths, w.page_size, draw)
    tensors = (*pools, table, int32(w.kv_lens, draw))
    scale = torch.full((w.kv_heads,), SCALE, device=device)
    cache = QuantizedKV(*tensors, scale, scale) if w.kv_dtype else PagedKV(*tensors)
    pairs = enumerate(zip(w.kv_lens, lengths, strict=True))
    places = [(i, key) for i, (before, after) in pairs for key in range(before, after)]
    request, key = torch.tensor(places, dtype=torch.int64, device=device).reshape(-1, 2).T
    slots = table[request, key // w.page_size].long() * w.page_size + key % w.page_size
    return AppendInputs(w, cache, k_new, v_new, sums(w.new_lens, draw), slots)
