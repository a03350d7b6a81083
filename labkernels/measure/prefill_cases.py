"""Random inputs of a prefill workload, the same for every contender."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from labkernels.measure.cases import exact_normal, n_pages, normal, scattered
from labkernels.workload import Prefill


@dataclass(frozen=True, eq=False)
class PrefillCase:
    """Tensors of one workload on one device.

    Shapes: q [total_q, Hq, D]; kv a kernels.ragged_kv.RaggedKV, or a kernels.paged_kv.PagedKV whose
    pages lie in random order; cu_seqlens_q [B + 1]
    """

    workload: Prefill
    q: object
    kv: object
    cu_seqlens_q: object
    scale: float


def prefill_case(workload: Prefill, *, seed: int, device: str = "cuda") -> PrefillCase:
    """Return standard normal q, K and V.

    Raises: ValueError if the workload's dtype is not fp16 or bf16.
    """
    return _case(workload, *normal(workload.dtype, seed=seed, device=device), device)


def exact_prefill_case(workload: Prefill, *, seed: int, device: str) -> PrefillCase:
    """Return a case with the same bits on every machine, as `cases.exact_decode_case`.

    Raises: ValueError if the workload's dtype is not fp16 or bf16.
    """
    return _case(workload, *exact_normal(workload.dtype, seed=seed, device=device), device)


def _case(workload: Prefill, draw: Callable, shuffle: Callable, device: str) -> PrefillCase:
    import torch

    from labkernels.kernels.paged_kv import PagedKV
    from labkernels.kernels.ragged_kv import RaggedKV

    def sums(lengths: Sequence[int]) -> torch.Tensor:
        return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)

    q = draw(sum(workload.q_lens), workload.q_heads, workload.head_dim)
    dims = (workload.head_dim, workload.head_dim_v)
    if workload.page_size is None:
        k, v = (draw(sum(workload.kv_lens), workload.kv_heads, dim) for dim in dims)
        kv = RaggedKV(k, v, sums(workload.kv_lens))
    else:
        pages = n_pages(workload.kv_lens, workload.page_size)
        k, v = (draw(pages, workload.page_size, workload.kv_heads, dim) for dim in dims)
        table = scattered(workload.kv_lens, workload.page_size, shuffle, device)
        kv = PagedKV(k, v, table, torch.tensor(workload.kv_lens, dtype=torch.int32, device=device))
    scale = 1 / math.sqrt(workload.head_dim)
    return PrefillCase(workload, q, kv, sums(workload.q_lens), scale)
