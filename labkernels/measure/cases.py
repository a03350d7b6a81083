"""Random inputs of a decode workload, the same for every contender."""

import math
from dataclasses import dataclass

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


def decode_case(workload: Decode, *, seed: int, device: str = "cuda") -> DecodeCase:
    """Return standard normal q, K and V in pages that are scattered over the pool.

    Raises: ValueError if the workload's dtype is not fp16 or bf16.
    """
    import torch

    from labkernels.kernels.paged_kv import PagedKV

    dtypes = {"fp16": torch.float16, "bf16": torch.bfloat16}
    if workload.dtype not in dtypes:
        raise ValueError(f"dtype = {workload.dtype!r}, allowed: {', '.join(dtypes)}")
    options = {"device": device, "dtype": dtypes[workload.dtype]}
    generator = torch.Generator(device).manual_seed(seed)
    pages_of = [-(-length // workload.page_size) for length in workload.kv_lens]
    n_pages = sum(pages_of)
    pool = (n_pages, workload.page_size, workload.kv_heads, workload.head_dim)
    k, v = (torch.empty(pool, **options).normal_(generator=generator) for _ in range(2))
    q = torch.empty(workload.batch, workload.q_heads, workload.head_dim, **options)
    q.normal_(generator=generator)
    order = torch.randperm(n_pages, generator=generator, device=device).int()
    table = torch.zeros(workload.batch, max(1, *pages_of), dtype=torch.int32, device=device)
    slots = torch.arange(table.shape[1], device=device)
    table[slots < torch.tensor(pages_of, device=device)[:, None]] = order
    lengths = torch.tensor(workload.kv_lens, dtype=torch.int32, device=device)
    scale = 1 / math.sqrt(workload.head_dim)
    return DecodeCase(workload, q, PagedKV(k, v, table, lengths), scale)


def exact_decode_case(workload: Decode, *, seed: int, device: str) -> DecodeCase:
    """Return a case with the same bits on every machine and under every version of torch.

    Elements are sums of four uniform 16-bit integers, centred and scaled by a power of two: nearly
    normal with a standard deviation of 1.15, exact until their one rounding to the dtype.
    """
    import numpy as np
    import torch

    from labkernels.kernels.paged_kv import PagedKV

    bits = np.random.PCG64(seed)

    def normal(*shape: int) -> torch.Tensor:
        words = bits.random_raw(math.prod(shape)).view(np.uint16).reshape(*shape, 4)
        centred = words.astype(np.int64).sum(-1) - 2 * 0xFFFF
        return torch.from_numpy(centred.astype(np.float32) * np.float32(2**-15)).to(dtype)

    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[workload.dtype]
    pages_of = [-(-length // workload.page_size) for length in workload.kv_lens]
    n_pages = sum(pages_of)
    pool = (n_pages, workload.page_size, workload.kv_heads, workload.head_dim)
    q = normal(workload.batch, workload.q_heads, workload.head_dim)
    k, v = normal(*pool), normal(*pool)
    order = np.argsort(bits.random_raw(n_pages), kind="stable").astype(np.int32)
    table = np.zeros((workload.batch, max(1, *pages_of)), dtype=np.int32)
    table[np.arange(table.shape[1]) < np.array(pages_of)[:, None]] = order
    lengths = torch.tensor(workload.kv_lens, dtype=torch.int32)
    tensors = (tensor.to(device) for tensor in (k, v, torch.from_numpy(table), lengths))
    scale = 1 / math.sqrt(workload.head_dim)
    return DecodeCase(workload, q.to(device), PagedKV(*tensors), scale)
