"""K and V of many requests one after the other, and the checks of cumulative lengths."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from labkernels.kernels.paged_kv import MAX_KEYS, require_device, require_formats


@dataclass(frozen=True, eq=False)
class RaggedKV:
    """K and V of many requests, each request's keys behind those of the one before.

    Shapes: k [total, kv_heads, head_dim], v [total, kv_heads, head_dim_v], fp16 or bf16, last
    dimension contiguous; cu_seqlens [batch + 1] int32, from 0 to total.
    Raises: ValueError naming the argument, its value and what is allowed.
    """

    k: torch.Tensor
    v: torch.Tensor
    cu_seqlens: torch.Tensor
    layout: ClassVar[str] = "ragged"

    def __post_init__(self) -> None:
        require_formats(self.k, self.v, "[total, kv_heads, head_dim]")
        require_cu_seqlens("cu_seqlens", self.cu_seqlens, self.k.device)

    @property
    def batch(self) -> int:
        """Number of requests."""
        return len(self.cu_seqlens) - 1

    @property
    def kv_heads(self) -> int:
        """Heads of K and V."""
        return self.k.shape[1]

    @property
    def head_dim(self) -> int:
        """Channels of K."""
        return self.k.shape[2]

    @property
    def head_dim_v(self) -> int:
        """Channels of V."""
        return self.v.shape[2]

    def of_request(self, request: int) -> tuple[torch.Tensor, torch.Tensor]:
        """One request's keys and values: [length, kv_heads, head_dim]."""
        first, end = self.cu_seqlens[request : request + 2].tolist()
        return self.k[first:end], self.v[first:end]

    def read_lengths(self) -> np.ndarray:
        """The keys of each request; reads cu_seqlens, so it waits for a GPU.

        Raises: ValueError naming the first offending entry.
        """
        return read_lengths("cu_seqlens", self.cu_seqlens, len(self.k))


def require_cu_seqlens(name: str, tensor: torch.Tensor, device: torch.device) -> None:
    """Raise ValueError unless a tensor can hold cumulative lengths; reads none of them."""
    if tensor.dtype != torch.int32:
        raise ValueError(f"{name}.dtype = {tensor.dtype}, allowed: torch.int32")
    if tensor.dim() != 1 or len(tensor) < 2:
        raise ValueError(f"{name}.shape = {tuple(tensor.shape)}, allowed: [batch + 1], batch >= 1")
    require_device(name, tensor, device)
    if tensor.stride(0) != 1:
        raise ValueError(f"{name}.stride() = {tensor.stride()}, allowed: (1,)")


def read_lengths(name: str, cu_seqlens: torch.Tensor, total: int) -> np.ndarray:
    """The lengths whose sums are given: int64 [batch]. Waits for a GPU.

    Raises: ValueError naming the first entry that does not ascend from 0 to total.
    """
    sums = cu_seqlens.cpu().numpy().astype(np.int64)
    lengths = np.diff(sums)
    if sums[0] != 0:
        raise ValueError(f"{name}[0] = {sums[0]}, allowed: 0")
    if (lengths < 0).any():
        i = int(np.argmax(lengths < 0)) + 1
        raise ValueError(f"{name}[{i}] = {sums[i]}, allowed: {sums[i - 1]} or more, as it ascends")
    if sums[-1] != total:
        raise ValueError(f"{name}[-1] = {sums[-1]}, allowed: {total}, the rows that there are")
    if lengths.max() > MAX_KEYS:
        raise ValueError(f"{name}: a request of {lengths.max()} rows, allowed: 0 to {MAX_KEYS}")
    return lengths
