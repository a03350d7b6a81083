"""The paged K/V cache that the decode kernels read, and the checks that guard it."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

MAX_KEYS = 2**30  # of a request: the kernels count keys, and a step beyond the last, in 32 bits
COPY_BYTES = 16  # a kernel's copies: rows of K, V and Q start at multiples of it


@dataclass(frozen=True, eq=False)
class PagedKV:
    """K and V of many requests, in pages anywhere in two pools.

    Shapes: k, v [pages, page_size, kv_heads, head_dim], fp16 or bf16, last dimension contiguous;
    v may have its own channels. page_table [batch, max_pages] int32; kv_len [batch] int32.
    Raises: ValueError naming the argument, its value and what is allowed.
    """

    k: torch.Tensor
    v: torch.Tensor
    page_table: torch.Tensor
    kv_len: torch.Tensor
    layout: ClassVar[str] = "paged"

    def __post_init__(self) -> None:
        _check_pools(self.k, self.v)
        for name, dims in (("page_table", 2), ("kv_len", 1)):
            tensor = getattr(self, name)
            if tensor.dtype != torch.int32:
                raise ValueError(f"{name}.dtype = {tensor.dtype}, allowed: torch.int32")
            if tensor.dim() != dims:
                raise ValueError(
                    f"{name}.shape = {tuple(tensor.shape)}, allowed: {dims} dimensions"
                )
            require_device(name, tensor, self.k.device)
            if tensor.numel() and tensor.stride(-1) != 1:
                raise ValueError(f"{name}.stride() = {tensor.stride()}, allowed: last stride 1")
        if len(self.page_table) != len(self.kv_len):
            raise ValueError(
                f"len(kv_len) = {len(self.kv_len)}, allowed: {len(self.page_table)},"
                " the rows of page_table"
            )
        if self.max_kv_len > MAX_KEYS:
            raise ValueError(
                f"page_table.shape[1] * page_size = {self.max_kv_len}, allowed: 0 to {MAX_KEYS}"
            )

    @property
    def batch(self) -> int:
        """Number of requests."""
        return len(self.kv_len)

    @property
    def page_size(self) -> int:
        """Keys a page."""
        return self.k.shape[1]

    @property
    def kv_heads(self) -> int:
        """Heads of K and V."""
        return self.k.shape[2]

    @property
    def head_dim(self) -> int:
        """Channels of K."""
        return self.k.shape[3]

    @property
    def head_dim_v(self) -> int:
        """Channels of V."""
        return self.v.shape[3]

    @property
    def max_kv_len(self) -> int:
        """The longest request that the page table has room for: a bound that needs no reading."""
        return self.page_table.shape[1] * self.page_size

    def of_request(self, request: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of one request's keys and values, in order: [kv_len, kv_heads, head_dim]."""
        key = torch.arange(int(self.kv_len[request]), device=self.k.device)
        page = self.page_table[request, key // self.page_size].long()
        return self.k[page, key % self.page_size], self.v[page, key % self.page_size]

    def require_twin_pools(self) -> None:
        """Raise ValueError unless one offset finds a key and its value: one shape, one stride."""
        k, v = self.k, self.v
        if v.shape != k.shape:
            raise ValueError(f"v.shape = {tuple(v.shape)}, allowed: {tuple(k.shape)}, as k")
        if v.stride() != k.stride():
            raise ValueError(f"v.stride() = {v.stride()}, allowed: {k.stride()}, as k")

    def read_lengths(self) -> np.ndarray:
        """The keys of each request; reads kv_len, so it waits for a GPU.

        Raises: ValueError naming the first offending entry.
        """
        lengths = self.kv_len.cpu().numpy().astype(np.int64)
        for request in np.flatnonzero((lengths < 0) | (lengths > self.max_kv_len)):
            raise ValueError(
                f"kv_len[{request}] = {lengths[request]}, allowed: 0 to {self.max_kv_len},"
                " page_table.shape[1] * page_size"
            )
        return lengths

    def check_contents(self) -> None:
        """Hold lengths and used page numbers against the pool; reads both, so it waits for a GPU.

        Raises: ValueError naming the first offending entry.
        """
        lengths = torch.from_numpy(self.read_lengths())
        pages = self.page_table.cpu()
        n_pages = (lengths + self.page_size - 1) // self.page_size
        used = torch.arange(pages.shape[1])[None, :] < n_pages[:, None]
        bad = used & ((pages < 0) | (pages >= len(self.k)))
        if bad.any():
            request, slot = bad.nonzero()[0].tolist()
            raise ValueError(
                f"page_table[{request}, {slot}] = {pages[request, slot].item()},"
                f" allowed: 0 to {len(self.k) - 1}, the pages of the pool"
            )


def require_device(name: str, tensor: torch.Tensor, device: torch.device) -> None:
    """Raise ValueError unless the tensor lives on `device`."""
    if tensor.device != device:
        raise ValueError(f"{name}.device = {tensor.device}, allowed: {device}, where k is")


def require_rows(name: str, tensor: torch.Tensor) -> None:
    """Raise ValueError unless rows are contiguous and start where a 16-byte copy can."""
    if tensor.stride(-1) != 1:
        raise ValueError(
            f"{name}.stride() = {tensor.stride()}, allowed: last stride 1 (a contiguous head_dim)"
        )
    width = tensor.element_size()
    strides = tensor.stride()[:-1]
    if tensor.data_ptr() % COPY_BYTES or any(s * width % COPY_BYTES for s in strides):
        raise ValueError(
            f"{name}: address {tensor.data_ptr():#x}, strides {tensor.stride()},"
            f" allowed: rows that start at multiples of {COPY_BYTES} bytes"
        )


def require_formats(k: torch.Tensor, v: torch.Tensor, layout: str) -> None:
    """Raise ValueError unless K and V have the dtype, dimensions, rows and device of kernels.

    layout: the dimensions in words; all but the last are the same for both.
    """
    for name, tensor in (("k", k), ("v", v)):
        if tensor.dtype not in (torch.float16, torch.bfloat16):
            allowed = "torch.float16, torch.bfloat16"
            raise ValueError(f"{name}.dtype = {tensor.dtype}, allowed: {allowed}")
        if tensor.dim() != layout.count(",") + 1:
            raise ValueError(f"{name}.shape = {tuple(tensor.shape)}, allowed: {layout}")
        require_rows(name, tensor)
    if k.shape[-2] == 0:
        raise ValueError(f"k.shape[{k.dim() - 2}] = 0 KV heads, allowed: 1 or more")
    require_device("v", v, k.device)
    if v.dtype != k.dtype:
        raise ValueError(f"v.dtype = {v.dtype}, allowed: {k.dtype}, as k")
    if v.shape[:-1] != k.shape[:-1]:
        raise ValueError(f"v.shape = {tuple(v.shape)}, allowed: {tuple(k.shape)}, as k")


def _check_pools(k: torch.Tensor, v: torch.Tensor) -> None:
    require_formats(k, v, "[pages, page_size, kv_heads, head_dim]")
    if not 1 <= k.shape[1] <= 256:
        raise ValueError(f"page_size = {k.shape[1]}, allowed: 1 to 256")
