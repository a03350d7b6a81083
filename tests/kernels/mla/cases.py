"""Random MLA decodes in which everything that no request owns is NaN."""

import functools
import math
from dataclasses import dataclass, field

import torch

from labkernels import ops
from labkernels.kernels.caches.latent import LATENT_DIM, ROPE_DIM, LatentKV
from labkernels.numerics.truth.problem import Problem
from tests.kernels.decode.cases import (
    DTYPES,
    SPARE_PAGES,
    WILD_PAGE,
    Remembers,
    exact,
    moved,
    pools,
)
from tests.kernels.prefill.cases import padded, sums


@dataclass(frozen=True, eq=False)
class MlaCase(Remembers):
    """An MLA decode. `storage` holds the whole buffers that the query and the rows are views of."""

    q_nope: torch.Tensor
    q_pe: torch.Tensor
    kv: LatentKV
    cu_seqlens_q: torch.Tensor
    causal: bool
    scale: float
    storage: tuple[torch.Tensor, ...]
    known: dict = field(default_factory=dict)

    @property
    def q(self) -> torch.Tensor:
        """Return attention's q: both parts of the query side by side."""
        return torch.cat([self.q_nope, self.q_pe], dim=-1)

    @property
    def head_dim_v(self) -> int:
        """Return the channels of the output."""
        return self.kv.head_dim_v

    def run(self, kernel, **options) -> ops.Step:
        """Decode at the case's scale, unless another is given."""
        options = {"scale": self.scale, "causal": self.causal, **options}
        inputs = (self.q_nope, self.q_pe, self.kv, self.cu_seqlens_q)
        return ops.mla_decode(*inputs, kernel=kernel, **options)

    def _problem(self):
        wide = map(exact, (self.q, self.kv.k, self.kv.v))
        return Problem(
            *wide,
            self.kv.page_table.cpu().numpy(),
            self.kv.kv_len.cpu().numpy(),
            self.scale,
            self.cu_seqlens_q.cpu().numpy(),
            self.causal,
        )


@functools.lru_cache(maxsize=24)
def mla_case(
    q_lens,
    kv_lens,
    *,
    heads=5,
    causal=True,
    page_size=16,
    dtype="bf16",
    layout="nhd",
    seed=0,
    device="cpu",
) -> MlaCase:
    """Return standard normal queries and latent rows, whose values do not depend on the pages.

    layout: one of LAYOUTS in decode/cases.py, with ckv and kpe in place of K and V.
    """
    generator, kind = torch.Generator().manual_seed(seed), DTYPES[dtype]

    def normal(*shape):
        return torch.randn(*shape, generator=generator).to(kind)

    parts = [
        (normal(n, heads, LATENT_DIM), normal(n, heads, ROPE_DIM), normal(m, LATENT_DIM + ROPE_DIM))
        for n, m in zip(q_lens, kv_lens, strict=True)
    ]
    q_nope, q_pe, rows = (torch.cat(each) for each in zip(*parts, strict=True))
    wide, queries = zip(padded(q_nope), padded(q_pe), strict=True)
    (q_nope, q_pe), wide = moved(list(queries), list(wide), device)
    n_pages = [-(-n // page_size) for n in kv_lens]
    order = torch.randperm(sum(n_pages) + SPARE_PAGES, generator=generator)
    shape = (len(order), page_size, 1, LATENT_DIM)
    ckv, kpe, storage = pools(shape, kind, layout, ROPE_DIM)
    table = torch.full((len(kv_lens), max(n_pages, default=0) + 3), WILD_PAGE, dtype=torch.int32)
    taken = first = 0
    for i, (pages, length) in enumerate(zip(n_pages, kv_lens, strict=True)):
        table[i, :pages] = order[taken : taken + pages]
        key = torch.arange(length)
        places = table[i, key // page_size].long(), key % page_size
        own = rows[first : first + length].unsqueeze(1)
        ckv[places], kpe[places] = own[..., :LATENT_DIM], own[..., LATENT_DIM:]
        taken, first = taken + pages, first + length
    (ckv, kpe), storage = moved([ckv[:, :, 0], kpe[:, :, 0]], storage, device)
    lengths, table = torch.tensor(kv_lens, dtype=torch.int32, device=device), table.to(device)
    kv = LatentKV(ckv, kpe, table[:, : max(1, table.shape[1] - 2)], lengths)
    ends = sums(q_lens, device)
    whole = (*wide, *storage, table, lengths, ends)
    return MlaCase(q_nope, q_pe, kv, ends, causal, 1 / math.sqrt(192), whole)
