"""Random inputs of a decode workload, the same for every implementation."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from labkernels.formats import named
from labkernels.kernels.caches.paged import PagedHeads, PagedKV, QuantizedKV
from labkernels.kernels.checks import KV_DTYPES
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.random_inputs import (
    Draw,
    Normal,
    arrays,
    int32,
    n_pages,
    problem_of_rows,
    scattered,
    variant_options,
    variant_tensors,
)
from labkernels.numerics.truth.problem import Problem
from labkernels.variant import AttentionVariant


def problem_of(q: torch.Tensor, cache: PagedHeads, *, scale: float) -> Problem:
    """Return a decode as a numerics problem on the tensors' device."""
    return Problem(*arrays(q, *cache.values()), cache.page_table, cache.kv_len, scale=scale)


@dataclass(frozen=True, eq=False)
class DecodeInputs:
    """Tensors of one workload on one device.

    options: of the verb, those that say which attention.
    Shapes: q [B, Hq, D]; cache a PagedKV or a QuantizedKV, whose pages lie in random order.
    """

    workload: Decode
    q: torch.Tensor
    cache: PagedHeads
    scale: float
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def variant(self) -> AttentionVariant:
        """Which attention the workload asks for."""
        return self.workload.variant

    @property
    def dtype(self) -> str:
        """The format of q, and of K and V unless the workload has a kv_dtype."""
        return self.workload.dtype

    @property
    def arguments(self) -> tuple:
        """The arguments of the verb, in its order."""
        return self.q, self.cache

    def problem(self, rows: Sequence[int] | None = None) -> Problem:
        """Return the attention of all or some requests as a numerics problem on this device."""
        plain = problem_of(self.q, self.cache, scale=self.scale)
        return problem_of_rows(replace(plain, variant=variant_tensors(self.options)), rows)


def decode_inputs(workload: Decode, draw: Draw) -> DecodeInputs:
    """Draw random q, K and V, in pages that are scattered over the pool, then the variant's.

    A cache of 8 bits holds the numbers of the cache of 16 bits, by `quantized`.
    Raises: ValueError if the workload's dtype is not fp16 or bf16.
    """
    w = workload
    rows = (w.batch, w.q_heads, w.head_dim)
    pool = (n_pages(w.kv_lens, w.page_size), w.page_size, w.kv_heads, w.head_dim)
    if isinstance(draw, Normal):  # drawn in the order in which the chapters' numbers were made
        k, v, q = (draw.tensor(w.dtype, *shape) for shape in (pool, pool, rows))
    else:  # drawn in the order in which the recorded bits were made
        q, k, v = (draw.tensor(w.dtype, *shape) for shape in (rows, pool, pool))
    cache: PagedHeads
    cache = PagedKV(k, v, scattered(w.kv_lens, w.page_size, draw), int32(w.kv_lens, draw))
    if w.kv_dtype is not None:
        cache = quantized(cache, w.kv_dtype, w.keys_per_scale)
    options = variant_options(w.variant, w.q_heads, draw)
    return DecodeInputs(w, q, cache, 1 / math.sqrt(w.head_dim), options)


def quantized(cache: PagedKV, kv_dtype: str, keys_per_scale: int | None = None) -> QuantizedKV:
    """Return a cache in 8 bits whose K and V each have one scale: the largest is the format's.

    keys_per_scale: so many keys of a page and head have a scale of their own.
    """
    (kind,) = (kind for kind, name in KV_DTYPES.items() if name == kv_dtype)
    pools, scales = [], []
    # a GPU would multiply by the inverse of a number, and divide 16 bits by a scale of 16 bits
    most = torch.tensor(named(kv_dtype).max, device=cache.k.device)
    for pool in (cache.k, cache.v):
        if keys_per_scale is None:
            scale = pool.abs().amax().float() / most
            pools.append((pool.float() / scale).to(pool.dtype).to(kind))
            scales.append(scale.expand(cache.kv_heads))
            continue
        blocks = pool.unflatten(1, (-1, keys_per_scale))
        largest = blocks.abs().amax((2, 4)).float().clamp(min=2.0**-100)  # positive for zeros, too
        scale = largest / most
        pools.append((blocks.float() / scale[:, :, None, :, None]).to(kind).flatten(1, 2))
        scales.append(scale)
    return QuantizedKV(*pools, cache.page_table, cache.kv_len, *scales)
