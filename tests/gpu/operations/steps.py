"""Helpers for tests of steps on a real GPU: equal bits, graphs, large pools."""

import math

import pytest
import torch

from tests.kernels.decode.cases import bits


def assert_same(left, right):
    assert torch.equal(bits(left.out), bits(right.out))
    assert torch.equal(bits(left.lse2), bits(right.lse2))


def assert_gives(run, step, expected):
    """Assert that `run` writes the expected bits into the step's outputs."""
    step.out.fill_(math.nan)
    step.lse2.fill_(math.nan)
    run()
    assert_same(step, expected)


def captured(step):
    """Return the step as a CUDA graph."""
    step.run()  # Triton compiles at the first run
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.run()
    return graph


def at_the_top(pools, page_table):
    """Return copies of pools after 2^31 elements, where offsets need 64 bits, and their table."""
    first, pages = -(-(2**31) // pools[0][0].numel()), len(pools[0])
    needed_bytes = sum((first + pages) * pool[0].nbytes for pool in pools)
    free_bytes = torch.cuda.mem_get_info()[0]
    if free_bytes < needed_bytes + 2**30:
        pytest.skip(f"needs {needed_bytes:,} B of GPU memory, {free_bytes:,} B are free")
    large = [pool.new_empty(first + pages, *pool.shape[1:]) for pool in pools]
    for pool, part in zip(large, pools, strict=True):
        pool[first:] = part
    return large, torch.where(page_table < pages, page_table + first, 0).int()
