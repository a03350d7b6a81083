"""The ragged cache: K and V of many requests, one request after another in one tensor."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from labkernels.kernels.caches.cache import Cache, Heads
from labkernels.kernels.checks import read_lengths, require_cu_seqlens, require_formats


@dataclass(frozen=True, eq=False)
class RaggedKV(Heads, Cache):
    """K and V of many requests, each request's keys after those of the request before.

    Shapes: k [total, kv_heads, head_dim], v [total, kv_heads, head_dim_v], fp16 or bf16, last
    dimension contiguous; cu_seqlens [batch + 1] int32, from 0 to total. A tensor with torch's
    negative bit is copied, so that later writes to it do not count: kernels only read the cache.
    Raises: ValueError naming the argument, its value and what is allowed.
    """

    k: torch.Tensor
    v: torch.Tensor
    cu_seqlens: torch.Tensor
    layout: ClassVar[str] = "ragged"
    is_written: ClassVar[bool] = False

    def check_tensors(self) -> None:
        """Raise ValueError unless kernels can use the shapes, strides, types and devices."""
        require_formats(self.k, self.v, "[total, kv_heads, head_dim]")
        require_cu_seqlens("cu_seqlens", self.cu_seqlens, self.k.device)

    @property
    def batch(self) -> int:
        """Number of requests."""
        return self.cu_seqlens.shape[0] - 1

    def of_request(self, request: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return one request's keys and values: [length, kv_heads, head_dim or head_dim_v]."""
        first, end = self.cu_seqlens[request : request + 2].tolist()
        return self.k[first:end], self.v[first:end]

    def read_lengths(self, known: Sequence[int] | None = None) -> np.ndarray:
        """Return the keys of each request, int64, as known, or else read from cu_seqlens.

        A read waits until the GPU has done its work.

        Raises: ValueError naming the first offending entry.
        """
        return read_lengths("cu_seqlens", self.cu_seqlens, self.k.shape[0], known, "kv_lens")
