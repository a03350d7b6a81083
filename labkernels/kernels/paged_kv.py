"""The paged K/V cache that the decode kernels read, and the checks that guard it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

MAX_KEYS = 2**30  # of a request: the kernels count keys, and a step beyond the last, in 32 bits
COPY_BYTES = 16  # a kernel's copies: rows of K, V and Q start at multiples of it
CHUNK = 8  # elements of one copy
REACH = 2**32 * CHUNK  # elements of a pool, 64 GiB: what 32 bits count in chunks


class Paged(ABC):
    """Requests in pages anywhere in pools: what a cache of any channels has; `pool` is one of them.

    Shapes: page_table [batch, max_pages] int32; kv_len [batch] int32.
    """

    page_table: torch.Tensor
    kv_len: torch.Tensor
    layout: ClassVar[str] = "paged"

    @property
    @abstractmethod
    def pool(self) -> torch.Tensor:
        """The pool that says pages, page size and device: [pages, page_size, ...]."""

    @property
    def batch(self) -> int:
        """Number of requests."""
        return len(self.kv_len)

    @property
    def page_size(self) -> int:
        """Keys a page."""
        return self.pool.shape[1]

    @property
    def max_kv_len(self) -> int:
        """The longest request that the page table has room for: a bound that needs no reading."""
        return self.page_table.shape[1] * self.page_size

    def places(self, request: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Where one request's keys lie, in order: their pages, and their places in them."""
        key = torch.arange(int(self.kv_len[request]), device=self.pool.device)
        page = self.page_table[request, key // self.page_size].long()
        return page, key % self.page_size

    def require_reach(self) -> None:
        """Raise ValueError unless 32 bits count the chunks of each pool."""
        for name, pool in (("k", self.k), ("v", self.v)):
            ends = zip(pool.shape, pool.stride(), strict=True)
            elements = 1 + sum((length - 1) * stride for length, stride in ends)
            if elements > REACH:
                raise ValueError(f"{name} extends over {elements} elements, allowed: {REACH}")

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
        bad = used & ((pages < 0) | (pages >= len(self.pool)))
        if bad.any():
            request, slot = bad.nonzero()[0].tolist()
            raise ValueError(
                f"page_table[{request}, {slot}] = {pages[request, slot].item()},"
                f" allowed: 0 to {len(self.pool) - 1}, the pages of the pool"
            )

    def check_table(self) -> None:
        """Raise ValueError unless page table and lengths can serve kernels; reads neither."""
        if not 1 <= self.page_size <= 256:
            raise ValueError(f"page_size = {self.page_size}, allowed: 1 to 256")
        for name, dims in (("page_table", 2), ("kv_len", 1)):
            tensor = getattr(self, name)
            if tensor.dtype != torch.int32:
                raise ValueError(f"{name}.dtype = {tensor.dtype}, allowed: torch.int32")
            if tensor.dim() != dims:
                raise ValueError(
                    f"{name}.shape = {tuple(tensor.shape)}, allowed: {dims} dimensions"
                )
            require_device(name, tensor, self.pool.device)
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


@dataclass(frozen=True, eq=False)
class PagedKV(Paged):
    """K and V of many requests, in pages anywhere in two pools.

    Shapes: k, v [pages, page_size, kv_heads, head_dim], fp16 or bf16, last dimension contiguous;
    v may have its own channels. page_table [batch, max_pages] int32; kv_len [batch] int32.
    Raises: ValueError naming the argument, its value and what is allowed.
    """

    k: torch.Tensor
    v: torch.Tensor
    page_table: torch.Tensor
    kv_len: torch.Tensor

    def __post_init__(self) -> None:
        require_formats(self.k, self.v, "[pages, page_size, kv_heads, head_dim]")
        self.check_table()

    @property
    def pool(self) -> torch.Tensor:
        """K's pool."""
        return self.k

    @property
    def page_division(self) -> tuple[int, int]:
        """What finds a key's page without a division: see `division`."""
        return division(self.page_size)

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

    def of_request(self, request: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of one request's keys and values, in order: [kv_len, kv_heads, head_dim]."""
        places = self.places(request)
        return self.k[places], self.v[places]

    def require_twin_pools(self) -> None:
        """Raise ValueError unless one offset finds a key and its value: one shape, one stride."""
        k, v = self.k, self.v
        if v.shape != k.shape:
            raise ValueError(f"v.shape = {tuple(v.shape)}, allowed: {tuple(k.shape)}, as k")
        if v.stride() != k.stride():
            raise ValueError(f"v.stride() = {v.stride()}, allowed: {k.stride()}, as k")


def division(divisor: int) -> tuple[int, int]:
    """Return shift and inverse: n // divisor is (2 n * inverse >> 32) >> shift for 0 <= n < 2^31.

    The inverse is 2^(31 + shift) / divisor rounded up, too large by less than 1 in 2^31, since
    divisor <= 2^shift: the quotient is too large by less than 1 / divisor, and rounds down alike.
    """
    shift = (divisor - 1).bit_length()
    return shift, -(-(2 ** (31 + shift)) // divisor)


def require_device(name: str, tensor: torch.Tensor, device: torch.device, as_: str = "k") -> None:
    """Raise ValueError unless the tensor lives on `device`, where `as_` does."""
    if tensor.device != device:
        raise ValueError(f"{name}.device = {tensor.device}, allowed: {device}, where {as_} is")


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


def require_formats(
    k: torch.Tensor, v: torch.Tensor, layout: str, names: tuple[str, str] = ("k", "v")
) -> None:
    """Raise ValueError unless K and V have the dtype, dimensions, rows and device of kernels.

    layout: the dimensions in words; all but the last are the same for both.
    """
    first, second = names
    for name, tensor in zip(names, (k, v), strict=True):
        if tensor.dtype not in (torch.float16, torch.bfloat16):
            allowed = "torch.float16, torch.bfloat16"
            raise ValueError(f"{name}.dtype = {tensor.dtype}, allowed: {allowed}")
        if tensor.dim() != layout.count(",") + 1:
            raise ValueError(f"{name}.shape = {tuple(tensor.shape)}, allowed: {layout}")
        require_rows(name, tensor)
    if k.shape[-2] == 0:
        what = layout.strip("[]").split(", ")[-2].replace("kv_heads", "KV heads")
        raise ValueError(f"{first}.shape[{k.dim() - 2}] = 0 {what}, allowed: 1 or more")
    require_device(second, v, k.device, first)
    if v.dtype != k.dtype:
        raise ValueError(f"{second}.dtype = {v.dtype}, allowed: {k.dtype}, as {first}")
    if v.shape[:-1] != k.shape[:-1]:
        raise ValueError(
            f"{second}.shape = {tuple(v.shape)}, allowed: {tuple(k.shape)}, as {first}"
        )
