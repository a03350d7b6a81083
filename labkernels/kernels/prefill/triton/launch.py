"""Prepares the launches of the Triton prefill."""

import torch

from labkernels.kernels.caches.paged import PagedKV
from labkernels.kernels.call import Attention, Step
from labkernels.kernels.checks import division
from labkernels.kernels.packed_gqa import triton
from labkernels.kernels.packed_gqa.call import PackedCall
from labkernels.kernels.packed_gqa.triton import Inputs
from labkernels.units import CHUNK

WIDEST = 128  # the most channels of one tl.dot: 192 channels become 128 and 64


def prepare(call: PackedCall) -> Step[Attention]:
    """List the blocks, allocate the splits' partial states and fix the launches.

    Raises: RuntimeError if Triton is missing, or was imported without its interpreter on a CPU;
    ValueError if a pool ends out of reach.
    """
    if isinstance(call.kv, PagedKV):
        call.kv.require_reach()
    return triton.prepare(call, _inputs(call))


def _inputs(call: PackedCall) -> Inputs:
    q, kv, head_dim = call.q, call.kv, call.choice.instance.width
    cu_seqlens_q, cu_seqlens_k, page_table, kv_len = _lengths(call)
    whole = head_dim & (head_dim - 1) == 0
    return Inputs(
        tensors=(q, kv.k, kv.v, cu_seqlens_q, cu_seqlens_k, page_table, kv_len),
        numbers=_strides(call),
        lengths=(cu_seqlens_q, cu_seqlens_k, kv_len),
        constants={
            "D": head_dim if whole else WIDEST,
            "D_TAIL": 0 if whole else head_dim - WIDEST,
            "D_V": call.choice.instance.head_dim_v,
            "PAGED": isinstance(kv, PagedKV),
            "EQUAL_STRIDES": kv.k.stride() == kv.v.stride(),
        },
    )


def _lengths(call: PackedCall) -> tuple[torch.Tensor, ...]:
    """cu_seqlens_q, cu_seqlens_k, page_table, kv_len; those of the other layout get any pointer."""
    kv, sums = call.kv, call.cu_seqlens_q
    if isinstance(kv, PagedKV):
        return sums, sums, kv.page_table, kv.kv_len
    return sums, kv.cu_seqlens, sums, sums


def _strides(call: PackedCall) -> tuple[int, ...]:
    kv = call.kv
    if isinstance(kv, PagedKV):
        strides = (x for pool in (kv.k, kv.v) for x in _pool_strides(pool))
        pages = (kv.page_table.stride(0), kv.page_size, *division(kv.page_size))
        return *call.q.stride()[:2], *strides, *pages
    return *call.q.stride()[:2], 0, *kv.k.stride()[:2], 0, *kv.v.stride()[:2], 0, 1, 0, 0


def _pool_strides(pool: torch.Tensor) -> tuple[int, ...]:
    """Return the strides: of a page and a token in chunks, of a head in elements."""
    page, token, head, _ = pool.stride()
    return page // CHUNK, token // CHUNK, head
