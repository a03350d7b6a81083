"""Producers and consumers use mbarriers, named barriers, TMA and wgmma in one kernel."""

import ctypes

import numpy as np
import pytest
import torch

from labkernels.cuda.gpu.tensor_map import TensorMap, tensor_map
from labkernels.cuda.host import build
from labkernels.numerics.emulation import tensor_core
from tests.cuda import machines
from tests.cuda.host.small_kernels import place

RNG = np.random.default_rng(5)
TILE_K = 64
RINGS = [(64, 1, 3), (32, 2, 5), (256, 2, 1)]  # columns, stages, steps


class Params(ctypes.Structure):
    """The struct roles::Params."""

    _fields_ = (
        ("a", TensorMap),
        ("b", TensorMap),
        ("out", ctypes.c_void_p),
        ("steps", ctypes.c_int),
        ("mistake", ctypes.c_int),
        ("filler", ctypes.c_int * 12),
    )


def multiply(machine, columns, stages, steps, mistake=0, *, checks=True):
    """Return the bits of a b, of 64 rows, by the kernel and by the model."""
    a, b = (
        torch.from_numpy(RNG.standard_normal((n, TILE_K * steps))).to(torch.bfloat16)
        for n in (64, columns)
    )
    values = (x.float().numpy() for x in (a, b.T))
    want = tensor_core.matmul(*values, arch="sm_90", fmt="bf16")
    out = torch.full((64, columns), float("nan"))
    tensors = {name: x.to(machine) for name, x in (("a", a), ("b", b), ("out", out))}
    maps = [tensor_map(tensors[name], (n, TILE_K)) for name, n in (("a", 64), ("b", columns))]
    machines.launch(
        machine,
        "roles.cuh",
        f"roles::multiply<{columns}, {stages}>",
        Params(*maps, tensors["out"].data_ptr(), steps, mistake),
        tensors,
        written=("out",),
        grid=(1, 1, 1),
        threads=256,
        smem_bytes=stages * (64 + columns) * TILE_K * 2 + 1024,
        checks=checks,
    )
    return tensors["out"].cpu().numpy().view(np.uint32), want.view(np.uint32)


@pytest.mark.parametrize(("ring", "checks"), [(RINGS[0], False), *((ring, True) for ring in RINGS)])
def test_a_ring_of_stages_has_the_bits_of_the_product(ring, checks):
    found, want = multiply(machines.CPU, *ring, checks=checks)
    assert np.array_equal(found, want)


@pytest.mark.parametrize(("mistake", "says"), [
    (1, "deadlock\n  thread 0: waits in mbarrier_wait at {empty} for parity 0 of the barrier at"
        " shared byte 16392: 1 of 1 arrivals and 0 bytes are missing"),
    (1, "threads 128 to 255: wait in mbarrier_wait at {full} for parity 1 of the barrier at shared"
        " byte 16384: 1 of 1 arrivals and 0 bytes are missing"),
    (2, "at {wgmma}, which no thread wrote"),
    (3, "race: writes shared byte 0 at {load a}; thread 158 read it at {wgmma}, and no barrier"),
    (4, "race: writes shared byte 2048 at {load a}; thread 190 read it at {wgmma}, and no barrier"),
])  # fmt: skip
def test_a_stage_is_handed_over_and_back(mistake, says):
    names = ("empty", "full", "wgmma", "load a")
    places = {name: place("roles.cuh", name) for name in names}
    with pytest.raises(build.HostKernelError) as caught:
        multiply(machines.CPU, 64, 1, 3, mistake)
    assert says.format(**places) in str(caught.value)
