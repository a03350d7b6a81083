"""Random prefills, ragged and paged, in which everything that no request owns is NaN."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from labkernels.kernels.caches.paged import PagedKV
from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.kernels.kernel import head_dim_v as channels_of_v
from labkernels.kernels.prefill.inputs import masked_variant
from labkernels.numerics.truth.problem import Problem
from tests.kernels.decode.cases import (
    DTYPES,
    EDGE,
    Forward,
    exact,
    in_pages,
    moved,
    padded,
    sums,
)

RAGGED_LAYOUTS = ("thd", "htd", "padded", "packed")


@dataclass(frozen=True, eq=False)
class PrefillCase(Forward):
    """A prefill problem. `storage` holds the whole buffers that q, K and V are views of."""

    q: torch.Tensor
    kv: RaggedKV | PagedKV
    cu_seqlens_q: torch.Tensor
    causal: bool
    scale: float
    storage: tuple[torch.Tensor, ...]
    known: dict = field(default_factory=dict)
    variant: Mapping[str, object] = field(default_factory=dict)

    verb = "prefill"

    @property
    def lengths(self) -> tuple[list[int], list[int]]:
        """Return how many queries and keys each request has."""
        keys = self.kv.cu_seqlens.diff() if isinstance(self.kv, RaggedKV) else self.kv.kv_len
        return self.cu_seqlens_q.diff().tolist(), keys.tolist()

    def _problem(self):
        wide = map(exact, (self.q, self.kv.k, self.kv.v))
        how = {
            "scale": self.scale,
            "cu_seqlens_q": self.cu_seqlens_q.cpu().numpy(),
            "causal": self.causal,
            "variant": masked_variant(self.variant, *self.lengths),
        }
        if isinstance(self.kv, RaggedKV):
            return Problem.packed(*wide, self.kv.cu_seqlens.cpu().numpy(), **how)
        table, lengths = self.kv.page_table.cpu().numpy(), self.kv.kv_len.cpu().numpy()
        return Problem(*wide, table, lengths, **how)


@functools.lru_cache(maxsize=24)
def prefill_case(
    q_lens,
    kv_lens,
    *,
    causal=True,
    group=2,
    kv_heads=2,
    head_dim=64,
    page_size=None,
    dtype="fp16",
    layout="thd",
    seed=0,
    device="cpu",
) -> PrefillCase:
    """Return standard normal q, K and V, whose values do not depend on page_size and layout.

    Without page_size K and V are ragged: "thd" [token, head, dim], "htd" the same seen through
    [head, token, dim], "padded" with gaps everywhere, "packed" beside q if the lengths agree. With
    page_size the layout is one of LAYOUTS in decode/cases.py.
    """
    generator = torch.Generator().manual_seed(seed)
    kind, dim_v, q_heads = DTYPES[dtype], channels_of_v(head_dim), group * kv_heads

    def normal(tokens, heads, dim):
        return torch.randn(tokens, heads, dim, generator=generator).to(kind)

    parts = [
        (normal(n, q_heads, head_dim), normal(m, kv_heads, head_dim), normal(m, kv_heads, dim_v))
        for n, m in zip(q_lens, kv_lens, strict=True)
    ]
    q, k, v = (torch.cat(each) for each in zip(*parts, strict=True))
    if page_size is None:
        q, k, v, storage = _ragged(q, k, v, layout, packs=q_lens == kv_lens)
        (q, k, v), storage = moved([q, k, v], storage, device)
        kv = RaggedKV(k, v, sums(kv_lens, device))
    else:
        wide_q, q = padded(q)
        (q,), wide_q = moved([q], [wide_q], device)
        kv, storage = in_pages(PagedKV, k, v, kv_lens, page_size, layout, generator, device)
        storage = [*wide_q, *storage]
    ends = sums(q_lens, device)
    return PrefillCase(q, kv, ends, causal, 1 / math.sqrt(head_dim), (*storage, ends))


def _ragged(q, k, v, layout, *, packs):
    if layout == "packed" and packs and k.shape[2] == v.shape[2]:
        edges = q.shape[1], q.shape[1] + k.shape[1]
        wide, inner = padded(torch.cat([q, k, v], dim=1))
        return *inner.tensor_split(edges, dim=1), [wide]
    if layout in ("padded", "packed"):
        wide, inner = zip(*map(padded, (q, k, v)), strict=True)
        return *inner, list(wide)
    wide, inner = [], []
    for x in (q, k, v):
        whole = torch.full((len(x) + 2 * EDGE, *x.shape[1:]), math.nan, dtype=x.dtype)
        if layout == "htd":
            whole = whole.transpose(0, 1).contiguous().transpose(0, 1)
        inner.append(whole[EDGE : EDGE + len(x)].copy_(x))
        wide.append(whole.transpose(0, 1) if layout == "htd" else whole)
    return *inner, wide
