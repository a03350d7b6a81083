"""Decode kernels with one changed line, each after a publicly reported bug: tests must find them.

A mutant is an edit of the real source for each kernel that has the line. A mutant is compiled like
any other kernel, for the CPU or a GPU.
"""

import functools
from dataclasses import dataclass

import numpy as np
import torch

from labkernels import ops
from labkernels.kernels.caches.paged import PagedKV
from labkernels.kernels.decode.inputs import DecodeInputs, decode_inputs
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.random_inputs import ExactNormal
from labkernels.measure.mutants.mutant import Mutant, read

MUTANTS = read("decode")
PAGES = "decode/problem.cuh"
SOFTMAX, SPLITS = "lab/attention/online_softmax.cuh", "lab/attention/split_kv.cuh"
HIGH_PAGES, EMPTY_REQUEST = "high pages", "empty request"
WRAP = 2**32  # elements: where an offset of 32 bits wraps to 0
Q_HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE = 16, 4, 128, 16


@dataclass(frozen=True)
class Shape:
    """Requests of a workload, and keys per split; all lengths then cost about the same."""

    batch: int
    keys_per_split: int


# The last step of 16 keys holds one key, and no last split would be empty with one key fewer.
LENGTHS = {
    305: Shape(8, 256),
    1009: Shape(4, 256),
    2033: Shape(2, 512),
    8177: Shape(1, 2048),
}


def exposing_case(
    mutant: Mutant, kv_len: int, dtype: str, *, seed: int, device: str
) -> DecodeInputs:
    """Return inputs that show the bug: several requests (but the longest), almost empty last steps.

    Raises: ValueError unless kv_len is one of LENGTHS.
    """
    if kv_len not in LENGTHS:
        raise ValueError(f"kv_len = {kv_len}, allowed: {', '.join(map(str, LENGTHS))}")
    lengths = (kv_len,) * LENGTHS[kv_len].batch
    if mutant.needs == EMPTY_REQUEST:
        lengths = (0, *lengths)
    workload = Decode(lengths, Q_HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE, dtype)
    return decode_inputs(workload, ExactNormal(seed, device))


def decode(mutant: Mutant, kernel: str, case: DecodeInputs):
    """Run a kernel with the bug on one of its cases, and return its output.

    Shapes: [B, Hq, D]. Elements that the kernel does not write are zeros, as in fresh memory.
    """
    longest = max(case.workload.kv_lens)
    run = functools.partial(
        ops.decode,
        case.q,
        kernel=mutant.spec(kernel),
        keys_per_split=LENGTHS[longest].keys_per_split,
        scale=case.scale,
        out=torch.zeros_like(case.q),
    )
    return high_in_a_pool(case.cache, run) if mutant.needs == HIGH_PAGES else run(case.cache).out


def high_in_a_pool(cache, run):
    """Return the output of run(cache), with the cache in a pool of more than 2^32 elements.

    The second half of each request's pages lies beyond 2^32 elements. K and V of a page are
    neighbours. A wrapped offset reads memory that was never written.
    """
    pages, *shape = cache.k.shape
    first_high = WRAP // (2 * cache.k[0].numel())
    pool = _zeros((first_high + pages, 2, *shape), cache.k)
    table = cache.page_table + pages
    half = table.shape[1] // 2
    table[:, half:] += first_high - pages
    old, new = cache.page_table.flatten().long(), table.flatten().long()
    pool[new, 0], pool[new, 1] = cache.k[old], cache.v[old]
    out = run(PagedKV(pool[:, 0], pool[:, 1], table, cache.kv_len)).out
    del pool
    if out.is_cuda:  # 8 GiB that other processes may be waiting for
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    return out


def _zeros(shape: tuple[int, ...], like):
    """Return zeros of a tensor's dtype and device; on a CPU, untouched memory takes no room."""
    if like.is_cuda:
        return torch.zeros(shape, dtype=like.dtype, device=like.device)
    return torch.from_numpy(np.zeros(shape, np.int16)).view(like.dtype)
