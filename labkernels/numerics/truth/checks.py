"""Checks of the tensors of an attention problem; errors name the tensor."""

import math
from typing import TYPE_CHECKING

from labkernels.numerics.truth import layouts

if TYPE_CHECKING:
    from labkernels.numerics.truth.problem import Problem


def check_shapes(p: "Problem") -> None:
    """Raise unless the tensors agree in their dimensions."""
    arrays = {"q": 3, "k_pool": 4, "v_pool": 4, "page_table": 2, "kv_lens": 1, "cu_seqlens_q": 1}
    for name, ndim in arrays.items():
        array = getattr(p, name)
        if array is not None and array.ndim != ndim:
            raise ValueError(f"{name}.ndim = {array.ndim}, allowed: {ndim}")
    if p.k_pool.shape[:3] != p.v_pool.shape[:3]:
        allowed = f"{tuple(p.k_pool.shape[:3])} and any Dv"
        raise ValueError(f"v_pool.shape = {tuple(p.v_pool.shape)}, allowed: {allowed}")
    q_heads, head_dim = p.q.shape[1:]
    if head_dim == 0 or p.v_pool.shape[3] == 0:
        found = f"{head_dim}, {p.v_pool.shape[3]}"
        raise ValueError(f"head_dim of q, of v = {found}, allowed: 1 or more")
    if p.k_pool.shape[3] != head_dim:
        raise ValueError(f"k_pool head_dim = {p.k_pool.shape[3]}, allowed: that of q, {head_dim}")
    if p.kv_heads == 0 or q_heads % p.kv_heads:
        raise ValueError(f"q heads = {q_heads}, allowed: multiples of {p.kv_heads} KV heads")
    batch = len(p.q) if p.cu_seqlens_q is None else len(p.cu_seqlens_q) - 1
    if len(p.page_table) != batch or len(p.kv_lens) != batch:
        found = f"{len(p.page_table)}, {len(p.kv_lens)}"
        raise ValueError(f"rows of page_table, kv_lens = {found}, allowed: {batch}")


def check_numbers(p: "Problem") -> None:
    """Raise unless scale, ends of requests, lengths and pages are in their ranges."""
    if not math.isfinite(p.scale):
        raise ValueError(f"scale = {p.scale}, allowed: a finite number")
    if p.cu_seqlens_q is not None:
        layouts.check_ends("cu_seqlens_q", p.cu_seqlens_q, len(p.q), exact=True)
    n_pages, page_size = p.k_pool.shape[:2]
    capacity = p.page_table.shape[1] * page_size
    for b, (pages, kv_len) in enumerate(zip(p.page_table, p.kv_lens.tolist(), strict=True)):
        if not 0 <= kv_len <= capacity:
            raise ValueError(f"kv_lens[{b}] = {kv_len}, allowed: 0 to {capacity}")
        owned = pages[: -(-kv_len // page_size)] if kv_len else pages[:0]
        if owned.size and not (owned.min() >= 0 and owned.max() < n_pages):
            raise ValueError(f"page_table[{b}] = {owned}, allowed: 0 to {n_pages - 1}")
