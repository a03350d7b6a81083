"""K and V of many requests in pages, and their checks."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from labkernels.kernels.caches.cache import Cache, Heads
from labkernels.kernels.checks import (
    KV_DTYPES,
    MAX_KEYS,
    REACH,
    known_lengths,
    once_per_content,
    require_device,
    require_formats,
    require_tensor,
)


class Paged(Cache):
    """Requests in pages anywhere in two pools: the base of all paged caches.

    Shapes: page_table [batch, max_pages] int32; kv_len [batch] int32.
    """

    page_table: torch.Tensor
    kv_len: torch.Tensor
    layout: ClassVar[str] = "paged"

    @property
    @abstractmethod
    def pools(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The pools, [pages, page_size, ...] each; the first gives these sizes and the device."""

    @property
    def pool(self) -> torch.Tensor:
        """The first of the pools."""
        return self.pools[0]

    @property
    def batch(self) -> int:
        """Number of requests."""
        return len(self.kv_len)

    @property
    def page_size(self) -> int:
        """Keys per page."""
        return self.pool.shape[1]

    @property
    def max_kv_len(self) -> int:
        """The most keys per request that the page table has room for; no length is read."""
        return self.page_table.shape[1] * self.page_size

    def places(self, request: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return where the keys of one request lie, in order: page and slot of each key."""
        key = torch.arange(int(self.kv_len[request]), device=self.pool.device)
        page = self.page_table[request, key // self.page_size].long()
        return page, key % self.page_size

    def require_reach(self) -> None:
        """Raise ValueError unless 32 bits can count the 16-byte chunks of each pool."""
        for name, pool in zip("kv", self.pools, strict=True):
            ends = zip(pool.shape, pool.stride(), strict=True)
            elements = 1 + sum((length - 1) * stride for length, stride in ends)
            if elements > REACH:
                raise ValueError(f"{name} extends over {elements} elements, allowed: {REACH}")

    def read_lengths(self, known: Sequence[int] | None = None) -> np.ndarray:
        """Return the keys of each request, int64: as known, or read, which waits for a GPU.

        Raises: ValueError naming the first offending entry.
        """
        longest = self.page_table.shape[1] * self.pool.shape[1]
        if known is not None:
            return known_lengths("kv_lens", known, len(self.kv_len), longest)
        return once_per_content(_read_kv_len, self.kv_len, longest=longest)

    def require_contents(self, known: Sequence[int] | None = None) -> None:
        """Check lengths and page numbers against the pool; on a GPU, only after torch saw a change.

        Nothing is read from a GPU if the lengths are given, or unchanged since the last check (see
        `checks.once_per_content`); `check_contents` always reads.
        Raises: ValueError naming the first offending entry.
        """
        if known is not None:
            self.read_lengths(known)
        if known is None or not self.pool.is_cuda:
            once_per_content(check_pages, self.page_table, self.kv_len, sizes=self.pool.shape[:2])

    def check_contents(self) -> None:
        """Check lengths and used page numbers against the pool: reads both, and so waits for a GPU.

        Raises: ValueError naming the first offending entry.
        """
        check_pages(self.page_table, self.kv_len, sizes=self.pool.shape[:2])

    def check_table(self) -> None:
        """Raise ValueError unless kernels can use page table and lengths; reads no contents."""
        if not 1 <= self.page_size <= 256:
            raise ValueError(f"page_size = {self.page_size}, allowed: 1 to 256")
        for name, dims in (("page_table", 2), ("kv_len", 1)):
            tensor = getattr(self, name)
            require_tensor(name, tensor)
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


def _read_kv_len(kv_len: torch.Tensor, *, longest: int) -> np.ndarray:
    lengths = kv_len.cpu().numpy().astype(np.int64)
    for request in np.flatnonzero((lengths < 0) | (lengths > longest)):
        raise wrong_length(request, lengths[request], longest)
    return lengths


def wrong_length(request: int, length: int, longest: int) -> ValueError:
    """Return the error for a request's length."""
    return ValueError(
        f"kv_len[{request}] = {length}, allowed: 0 to {longest}, page_table.shape[1] * page_size"
    )


def wrong_page(request: int, slot: int, page: int, n_pages: int) -> ValueError:
    """Return the error for a page in a slot of a request."""
    return ValueError(
        f"page_table[{request}, {slot}] = {page}, allowed: 0 to {n_pages - 1}, the pages of the"
        " pool"
    )


def check_pages(page_table: torch.Tensor, kv_len: torch.Tensor, *, sizes: tuple[int, int]) -> None:
    """Raise ValueError unless lengths and used page numbers fit pools of [pages, page_size]."""
    n_pages, page_size = sizes
    lengths = _read_kv_len(kv_len, longest=page_table.shape[1] * page_size)
    pages = page_table.cpu().numpy()
    used = np.arange(pages.shape[1]) < -(-lengths // page_size)[:, None]
    bad = used & ((pages < 0) | (pages >= n_pages))
    if bad.any():
        request, slot = np.argwhere(bad)[0].tolist()
        raise wrong_page(request, slot, pages[request, slot], n_pages)


@dataclass(frozen=True, eq=False)
class PagedHeads(Heads, Paged):
    """K and V of several heads, in pages anywhere in two pools: the base of two caches."""

    k: torch.Tensor
    v: torch.Tensor
    page_table: torch.Tensor
    kv_len: torch.Tensor

    @property
    def pools(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The pools of K and V."""
        return self.k, self.v

    def of_request(self, request: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return copies of a request's keys and values, in order: [kv_len, kv_heads, head_dim]."""
        places = self.places(request)
        return self.k[places], self.v[places]

    def values(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the pools as the numbers that they stand for."""
        return self.k, self.v

    def require_equal_strides(self) -> None:
        """Raise ValueError unless K and V have equal shapes and strides, and so equal offsets."""
        k, v = self.k, self.v
        if v.shape != k.shape:
            raise ValueError(f"v.shape = {tuple(v.shape)}, allowed: {tuple(k.shape)}, as k")
        if v.stride() != k.stride():
            raise ValueError(f"v.stride() = {v.stride()}, allowed: {k.stride()}, as k")


DIMS = "[pages, page_size, kv_heads, head_dim]"


@dataclass(frozen=True, eq=False)
class PagedKV(PagedHeads):
    """K and V of many requests, in pages anywhere in two pools.

    Shapes: k, v [pages, page_size, kv_heads, head_dim], fp16 or bf16, last dimension contiguous;
    v may have its own channels. page_table [batch, max_pages] int32; kv_len [batch] int32.
    Raises: ValueError naming the argument, its value and what is allowed; a tensor with torch's
    negative bit is refused, since a cache is the caller's memory, which later calls write.
    """

    def check_tensors(self) -> None:
        """Raise ValueError unless shapes, strides, types and devices serve kernels."""
        require_formats(self.k, self.v, DIMS)
        self.check_table()


@dataclass(frozen=True, eq=False)
class QuantizedKV(PagedHeads):
    """K and V of many requests in 8 bits, in pages anywhere in two pools, and their scales.

    A key is k * k_scale, a value is v * v_scale. Both scales have the shape [], [kv_heads], or
    [pages, blocks, kv_heads or 1], where each of `blocks` equal parts of a page's keys has its own:
    1 block is a page, page_size blocks are tokens.
    Shapes: k, v [pages, page_size, kv_heads, head_dim], both torch.float8_e4m3fn or both
    torch.float8_e5m2, last dimension contiguous. page_table [batch, max_pages] int32; kv_len
    [batch] int32. k_scale, v_scale fp32, of the same strides if of blocks; they must be positive
    and finite, as a run with checks finds, and are read when a step runs.
    Raises: ValueError naming the argument, its value and what is allowed.

    >>> k, v = torch.randn(2, 3, 16, 2, 64).to(torch.float8_e4m3fn)  # 3 pages of 16 keys, 2 heads
    >>> table, one = torch.tensor([[2, 0]], dtype=torch.int32), torch.ones(2)
    >>> cache = QuantizedKV(k, v, table, torch.tensor([20], dtype=torch.int32), one, one)
    >>> [x.shape for x in cache.of_request(0)]
    [torch.Size([20, 2, 64]), torch.Size([20, 2, 64])]
    """

    k_scale: torch.Tensor
    v_scale: torch.Tensor

    def check_tensors(self) -> None:
        """Raise ValueError unless shapes, strides, types and devices serve kernels."""
        require_formats(self.k, self.v, DIMS, dtypes=KV_DTYPES)
        self.check_table()
        for name in ("k_scale", "v_scale"):
            scale = getattr(self, name)
            require_tensor(name, scale)
            require_device(name, scale, self.k.device)
            if scale.dtype != torch.float32 or not self._fits(scale.shape):
                found, heads = f"{scale.dtype} {tuple(scale.shape)}", self.kv_heads
                blocks = f"({len(self.k)}, blocks that divide {self.page_size}, {heads} or 1)"
                allowed = f"torch.float32 (), ({heads},), {blocks}"
                raise ValueError(f"{name} is {found}, allowed: {allowed}")
        alike = self.k_scale.shape == self.v_scale.shape
        if self.of_blocks and not (alike and self.k_scale.stride() == self.v_scale.stride()):
            found = f"{tuple(self.v_scale.shape)}, strides {self.v_scale.stride()}"
            allowed = f"{tuple(self.k_scale.shape)}, strides {self.k_scale.stride()}, as k_scale"
            raise ValueError(f"v_scale is {found}, allowed: {allowed}")

    def _fits(self, shape: torch.Size) -> bool:
        if len(shape) != 3:
            return shape in ((), (self.kv_heads,))
        blocks = shape[1] and self.page_size % shape[1] == 0
        return bool(blocks) and shape[0] == len(self.k) and shape[2] in (1, self.kv_heads)

    @property
    def of_blocks(self) -> bool:
        """Whether blocks of keys have scales, which then have 3 dimensions."""
        return 3 in (self.k_scale.dim(), self.v_scale.dim())

    @property
    def keys_per_scale(self) -> int | None:
        """The keys of a block that has a scale; None if its keys have those of their head."""
        return self.page_size // self.k_scale.shape[1] if self.of_blocks else None

    def scales(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scales as views of all heads: [kv_heads] or [pages, blocks, kv_heads]."""
        pages = self.k_scale.shape[:2] if self.of_blocks else ()
        k, v = (x.expand(*pages, self.kv_heads) for x in (self.k_scale, self.v_scale))
        return k, v

    def of_request(self, request: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a request's keys and values in float64, in order: [kv_len, kv_heads, head_dim]."""
        page, slot = places = self.places(request)
        k, v = self.scales()
        if n := self.keys_per_scale:
            k, v = k[page, slot // n], v[page, slot // n]
        k, v = (x.double()[..., None] for x in (k, v))
        return self.k[places].double() * k, self.v[places].double() * v

    def values(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the pools as the numbers that they stand for, in float64."""
        k, v = self.scales()
        if n := self.keys_per_scale:
            k, v = (x.repeat_interleave(n, 1) for x in (k, v))
        k, v = (x.double()[..., None] for x in (k, v))
        return self.k.double() * k, self.v.double() * v
