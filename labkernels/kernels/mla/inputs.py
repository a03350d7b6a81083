"""Random inputs of an MLA decode workload, the same for every implementation."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from labkernels.kernels.caches.latent import LatentKV
from labkernels.kernels.mla.workload import MlaDecode
from labkernels.kernels.random_inputs import (
    Draw,
    arrays,
    int32,
    n_pages,
    problem_of_rows,
    scattered,
    sums,
)
from labkernels.numerics.truth.problem import Problem
from labkernels.variant import AttentionVariant


@dataclass(frozen=True, eq=False)
class MlaInputs:
    """Tensors of one workload on one device.

    Shapes: q_nope [total_q, H, 512], q_pe [total_q, H, 64]; cache a LatentKV whose pages lie in
    random order; cu_seqlens_q [B + 1].
    """

    workload: MlaDecode
    q_nope: torch.Tensor
    q_pe: torch.Tensor
    cache: LatentKV
    cu_seqlens_q: torch.Tensor
    scale: float

    @property
    def variant(self) -> AttentionVariant:
        """Which keys a query sees."""
        return self.workload.variant

    @property
    def arguments(self) -> tuple:
        """The arguments of the verb, in its order."""
        return self.q_nope, self.q_pe, self.cache, self.cu_seqlens_q

    @property
    def q(self) -> torch.Tensor:
        """The query's two parts copied side by side, as attention's q: [total_q, H, 576]."""
        return torch.cat([self.q_nope, self.q_pe], dim=-1)

    def problem(self, rows: Sequence[int] | None = None) -> Problem:
        """Return the attention of all or some query tokens as a numerics problem on this device.

        Only the requests of these rows are copied, because a latent cache is large.
        """
        n, batch = self.workload.q_len, self.workload.batch
        requests = list(range(batch)) if rows is None else sorted({row // n for row in rows})
        tokens = [request * n + token for request in requests for token in range(n)]
        parts = [self.cache.of_request(request) for request in requests]
        k, v = (torch.cat(each) for each in zip(*parts, strict=True))
        problem = Problem.packed(
            *arrays(self.q[tokens], k, v),
            np.cumsum([0, *(len(part[0]) for part in parts)]),
            scale=self.scale,
            cu_seqlens_q=np.arange(len(requests) + 1) * n,
            causal=self.workload.causal,
        )
        place = {token: i for i, token in enumerate(tokens)}
        return problem_of_rows(problem, None if rows is None else [place[row] for row in rows])


def mla_inputs(workload: MlaDecode, draw: Draw) -> MlaInputs:
    """Draw random queries and latent rows, in pages that are scattered over the pool.

    Raises: ValueError if the workload's dtype is not fp16 or bf16.
    """
    w, channels = workload, (workload.latent_dim, workload.rope_dim)
    q_nope, q_pe = (draw.tensor(w.dtype, w.batch * w.q_len, w.q_heads, n) for n in channels)
    pages = n_pages(w.kv_lens, w.page_size)
    ckv, kpe = (draw.tensor(w.dtype, pages, w.page_size, n) for n in channels)
    table = scattered(w.kv_lens, w.page_size, draw)
    cache = LatentKV(ckv, kpe, table, int32(w.kv_lens, draw))
    ends = sums((w.q_len,) * w.batch, draw)
    return MlaInputs(w, q_nope, q_pe, cache, ends, cache.default_scale)
