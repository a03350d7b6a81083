"""Random MLA decodes in which everything that no request owns is NaN."""

import functools
import math
from dataclasses import dataclass, field

import torch

from labkernels.kernels.caches.latent import LATENT_DIM, ROPE_DIM, LatentKV
from labkernels.numerics.truth.problem import Problem
from tests.kernels.decode.cases import DTYPES, Forward, exact, in_pages, moved, padded, sums


@dataclass(frozen=True, eq=False)
class MlaCase(Forward):
    """An MLA decode. `storage` holds the whole buffers that the query and the rows are views of."""

    q_nope: torch.Tensor
    q_pe: torch.Tensor
    kv: LatentKV
    cu_seqlens_q: torch.Tensor
    causal: bool
    scale: float
    storage: tuple[torch.Tensor, ...]
    known: dict = field(default_factory=dict)
    verb, queries = "mla_decode", ("q_nope", "q_pe")

    @property
    def q(self) -> torch.Tensor:
        """Return attention's q: both parts of the query side by side."""
        return torch.cat([self.q_nope, self.q_pe], dim=-1)

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
    ckv, kpe = rows[:, None, :LATENT_DIM], rows[:, None, LATENT_DIM:]
    kv, storage = in_pages(LatentKV, ckv, kpe, kv_lens, page_size, layout, generator, device)
    ends = sums(q_lens, device)
    whole = (*wide, *storage, ends)
    return MlaCase(q_nope, q_pe, kv, ends, causal, 1 / math.sqrt(192), whole)
