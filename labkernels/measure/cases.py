"""Random inputs of a decode workload, the same for every contender."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from labkernels.measure.accuracy import problem_of
from labkernels.numerics.problem import Problem
from labkernels.workload import Decode


@dataclass(frozen=True, eq=False)
class DecodeCase:
    """Tensors of one workload on one device.

    Shapes: q [B, Hq, D]; cache a kernels.paged_kv.PagedKV whose pages lie in random order
    """

    workload: Decode
    q: object
    cache: object
    scale: float

    @property
    def dtype(self) -> str:
        """The format of q, K and V."""
        return self.workload.dtype

    def problem(self) -> Problem:
        """The same inputs in float64."""
        return problem_of(self.q, self.cache, scale=self.scale)


def decode_case(workload: Decode, *, seed: int, device: str = "cuda") -> DecodeCase:
    """Return standard normal q, K and V in pages that are scattered over the pool.

    Raises: ValueError if the workload's dtype is not fp16 or bf16.
    """
    draw, shuffle = normal(workload.dtype, seed=seed, device=device)
    k, v = (draw(*_pool(workload)) for _ in range(2))
    q = draw(workload.batch, workload.q_heads, workload.head_dim)
    return _case(workload, q, k, v, shuffle, device)


def exact_decode_case(workload: Decode, *, seed: int, device: str) -> DecodeCase:
    """Return a case with the same bits on every machine and under every version of torch.

    Raises: ValueError if the workload's dtype is not fp16 or bf16.
    """
    draw, shuffle = exact_normal(workload.dtype, seed=seed, device=device)
    q = draw(workload.batch, workload.q_heads, workload.head_dim)
    k, v = (draw(*_pool(workload)) for _ in range(2))
    return _case(workload, q, k, v, shuffle, device)


def normal(dtype: str, *, seed: int, device: str) -> tuple[Callable, Callable]:
    """Return what draws a tensor of a shape, standard normal, and what permutes so many numbers.

    Raises: ValueError if the dtype is not fp16 or bf16.
    """
    import torch

    kind, generator = _dtype(dtype), torch.Generator(device).manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.empty(shape, device=device, dtype=kind).normal_(generator=generator)

    def shuffle(n: int) -> torch.Tensor:
        return torch.randperm(n, generator=generator, device=device).int()

    return draw, shuffle


def exact_normal(dtype: str, *, seed: int, device: str) -> tuple[Callable, Callable]:
    """Return as `normal`, with the same bits on every machine and under every version of torch.

    Elements are sums of four uniform 16-bit integers, centred and scaled by a power of two: nearly
    normal with a standard deviation of 1.15, exact until their one rounding to the dtype.
    """
    import numpy as np
    import torch

    kind, bits = _dtype(dtype), np.random.PCG64(seed)

    def draw(*shape: int) -> torch.Tensor:
        words = bits.random_raw(math.prod(shape)).view(np.uint16).reshape(*shape, 4)
        centred = words.astype(np.int64).sum(-1) - 2 * 0xFFFF
        exact = torch.from_numpy(centred.astype(np.float32) * np.float32(2**-15))
        return exact.to(kind).to(device)

    def shuffle(n: int) -> torch.Tensor:
        order = np.argsort(bits.random_raw(n), kind="stable").astype(np.int32)
        return torch.from_numpy(order).to(device)

    return draw, shuffle


def n_pages(kv_lens: Sequence[int], page_size: int) -> int:
    """Return the pages that requests of these lengths fill."""
    return sum(-(-length // page_size) for length in kv_lens)


def scattered(kv_lens: Sequence[int], page_size: int, shuffle: Callable, device: str):
    """Return the page table of requests whose pages lie in random order."""
    import torch

    pages_of = torch.tensor([-(-length // page_size) for length in kv_lens])
    table = torch.zeros(len(kv_lens), max(1, int(pages_of.max())), dtype=torch.int32)
    used = torch.arange(table.shape[1]) < pages_of[:, None]
    table[used] = shuffle(n_pages(kv_lens, page_size)).cpu()
    return table.to(device)


def _dtype(dtype: str):
    import torch

    dtypes = {"fp16": torch.float16, "bf16": torch.bfloat16}
    if dtype not in dtypes:
        raise ValueError(f"dtype = {dtype!r}, allowed: {', '.join(dtypes)}")
    return dtypes[dtype]


def _pool(workload: Decode) -> tuple[int, int, int, int]:
    pages = n_pages(workload.kv_lens, workload.page_size)
    return pages, workload.page_size, workload.kv_heads, workload.head_dim


def _case(workload: Decode, q, k, v, shuffle: Callable, device: str) -> DecodeCase:
    import torch

    from labkernels.kernels.paged_kv import PagedKV

    table = scattered(workload.kv_lens, workload.page_size, shuffle, device)
    lengths = torch.tensor(workload.kv_lens, dtype=torch.int32, device=device)
    scale = 1 / math.sqrt(workload.head_dim)
    return DecodeCase(workload, q, PagedKV(k, v, table, lengths), scale)
