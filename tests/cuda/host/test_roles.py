"""Producers and consumers: mbarriers, named barriers, TMA and wgmma in one kernel."""

import ctypes

import numpy as np
import pytest
import torch

from labkernels.cuda import host
from labkernels.cuda.tensor_map import TensorMap, tensor_map
from labkernels.numerics import tensor_core
from tests.cuda.host.small_kernels import KERNELS

RNG = np.random.default_rng(5)
TILE_K = 64


class Params(ctypes.Structure):
    _fields_ = (
        ("a", TensorMap),
        ("b", TensorMap),
        ("out", TensorMap),
        ("steps", ctypes.c_int),
        ("mistake", ctypes.c_int),
        ("filler", ctypes.c_int * 14),
    )


def multiply(columns, stages, steps, mistake=0, *, checks=True):
    a, b = (
        torch.from_numpy(RNG.standard_normal((n, TILE_K * steps))).to(torch.bfloat16)
        for n in (64, columns)
    )
    out = torch.full((64, columns), float("nan"))
    maps = [tensor_map(x, (x.shape[0], TILE_K)) for x in (a, b)]
    params = Params(*maps, tensor_map(out, (64, columns), swizzle_bytes=0), steps, mistake)
    tile_bytes = (64 + columns) * TILE_K * 2
    host.build(
        "roles.cuh",
        instance=f"roles::multiply<{columns}, {stages}>",
        params="roles::Params",
        include_dirs=[KERNELS],
        checks=checks,
    ).launch(
        grid=(1, 1, 1),
        threads=256,
        smem_bytes=stages * tile_bytes + 64 * columns * 4 + 1024,
        params=params,
        ranges=[
            host.GlobalRange(name, x.data_ptr(), x.untyped_storage().nbytes(), writable=w)
            for name, x, w in (("a", a, False), ("b", b, False), ("out", out, True))
        ],
    )
    values = (x.float().numpy() for x in (a, b.T))
    want = tensor_core.matmul(*values, arch="sm_90", fmt="bf16")
    return out.numpy(), want


@pytest.mark.parametrize("checks", [False, True])
@pytest.mark.parametrize(("columns", "stages", "steps"), [(64, 1, 3), (32, 2, 5), (256, 2, 1)])
def test_a_ring_of_stages_has_the_bits_of_the_product(columns, stages, steps, checks):
    out, want = multiply(columns, stages, steps, checks=checks)
    assert np.array_equal(out.view(np.uint32), want.view(np.uint32))
