"""What the Triton prefill is launched with."""

import torch

from labkernels.kernels import triton_packed
from labkernels.kernels.paged_kv import CHUNK, PagedKV
from labkernels.kernels.prefill_step import PrefillRequest
from labkernels.kernels.step import Step
from labkernels.kernels.triton_packed import Inputs

WIDEST = 128  # channels of one tl.dot that need not be a power of two: 192 are 128 and 64


def prepare(request: PrefillRequest) -> Step:
    """List the blocks, allocate the splits' partial States and fix the launches.

    Raises: RuntimeError if Triton is missing, or was imported without its interpreter on a CPU;
    ValueError if a pool ends out of reach.
    """
    if isinstance(request.kv, PagedKV):
        request.kv.require_reach()
    return triton_packed.prepare(request, _inputs)


def _inputs(request: PrefillRequest) -> Inputs:
    q, kv, head_dim = request.q, request.kv, request.instance.head_dim
    cu_seqlens_q, cu_seqlens_k, page_table, kv_len = _lengths(request)
    whole = head_dim & (head_dim - 1) == 0
    return Inputs(
        tensors=(q, kv.k, kv.v, cu_seqlens_q, cu_seqlens_k, page_table, kv_len),
        numbers=_strides(request),
        lengths=(cu_seqlens_q, cu_seqlens_k, kv_len),
        constants={
            "D": head_dim if whole else WIDEST,
            "D_TAIL": 0 if whole else head_dim - WIDEST,
            "D_V": request.instance.head_dim_v,
            "PAGED": isinstance(kv, PagedKV),
            "TWINS": kv.k.stride() == kv.v.stride(),
        },
    )


def _lengths(request: PrefillRequest) -> tuple[torch.Tensor, ...]:
    """cu_seqlens_q, cu_seqlens_k, page_table, kv_len; for those of the other layout any pointer."""
    kv, sums = request.kv, request.cu_seqlens_q
    if isinstance(kv, PagedKV):
        return sums, sums, kv.page_table, kv.kv_len
    return sums, kv.cu_seqlens, sums, sums


def _strides(request: PrefillRequest) -> tuple[int, ...]:
    kv = request.kv
    if isinstance(kv, PagedKV):
        strides = (x for pool in (kv.k, kv.v) for x in _pool_strides(pool))
        pages = (kv.page_table.stride(0), kv.page_size, *kv.page_division)
        return *request.q.stride()[:2], *strides, *pages
    return *request.q.stride()[:2], 0, *kv.k.stride()[:2], 0, *kv.v.stride()[:2], 0, 1, 0, 0


def _pool_strides(pool: torch.Tensor) -> tuple[int, ...]:
    """Of a page and a token in chunks, of a head in elements."""
    page, token, head, _ = pool.stride()
    return page // CHUNK, token // CHUNK, head
