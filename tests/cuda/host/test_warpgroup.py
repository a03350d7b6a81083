"""wgmma on the CPU has the right bits in every layout, and names each mistake in its use."""

import ctypes
from itertools import product

import numpy as np
import pytest
import torch

from labkernels.numerics import rounding
from labkernels.numerics.emulation import tensor_core
from tests.cuda import machines
from tests.cuda.host.small_kernels import aligned, build, message, place, run

RNG = np.random.default_rng(7)
SMEM_BYTES = 16384
LAYOUTS = [
    (majors, a_in_registers)
    for majors, a_in_registers in product(product(("k", "mn"), repeat=2), (False, True))
    if not (a_in_registers and majors[0] == "mn")
]
CPP = {"fp16": "lab::f16", "bf16": "lab::bf16", "e4m3": "lab::e4m3"}


class MmaParams(ctypes.Structure):
    """lab::MmaParams of kernels/probes.cuh."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in "abcd")


def tile(fmt, shape):
    x = RNG.standard_normal(shape) * 2.0 ** RNG.integers(-8, 8, shape)
    return rounding.to_bits(x, fmt)


COLUMNS = (32, 64, 80, 96, 128, 160, 176, 192, 256)


def chain_of_four(machine, fmt, majors, a_in_registers, *, columns, tiles=1):
    """Return d by kernel and model, for a K of 64, which fills a row of the 128-byte swizzle."""
    steps = 4
    a, b = tile(fmt, (tiles, 64, 16 * steps)), tile(fmt, (tiles, columns, 16 * steps))
    c = RNG.standard_normal((tiles, 64, columns)).astype(np.float32)
    stored = [
        np.ascontiguousarray(x if major == "k" else x.swapaxes(1, 2)).view(np.int16)
        for x, major in zip((a, b), majors, strict=True)
    ]
    tensors = {
        name: torch.from_numpy(x).to(machine)
        for name, x in zip("abcd", (*stored, c, np.full_like(c, np.nan)), strict=True)
    }
    layout = (f"lab::Major::{major}" for major in majors)
    words = ", ".join((CPP[fmt], *layout, str(a_in_registers).lower(), str(columns), str(steps)))
    machines.launch(
        machine,
        "probes.cuh",
        f"lab::probe_wgmma<{words}>",
        MmaParams(*(x.data_ptr() for x in tensors.values())),
        tensors,
        written="d",
        grid=(tiles, 1, 1),
        threads=128,
        smem_bytes=(64 + -(-columns // 64) * 64) * 32 * steps,  # of a's 64 rows, and of b
        checks=False,
    )
    values = (rounding.from_bits(x, fmt) for x in (a, b.swapaxes(1, 2)))
    want = tensor_core.matmul(*values, c, arch="sm_90", fmt=fmt)
    return tensors["d"].cpu().numpy().view(np.uint32), want.view(np.uint32)


@pytest.mark.parametrize(
    ("layout", "columns"),
    [*((layout, 64) for layout in LAYOUTS), *zip(LAYOUTS * 2, COLUMNS, strict=False)],
)
def test_a_chain_of_four_reads_its_tiles_where_the_descriptors_say(layout, columns):
    fmt = "bf16" if columns % 64 else "fp16"
    found, want = chain_of_four(machines.CPU, fmt, *layout, columns=columns)
    assert np.array_equal(found, want)


@pytest.fixture(scope="module")
def tiles():
    return aligned(tile("fp16", (128, 16)), np.uint16)


def multiplied(tiles, number, *, kernel="multiply", threads=128, **options):
    """Return what a kernel makes of two tiles, given what it does otherwise."""
    out = np.full((64, 64), 3, np.float32)
    made = build(f"warpgroup::{kernel}", **options)
    return run(made, tiles, out, number, threads=threads, smem=SMEM_BYTES)


def complaint(tiles, number, *, kernel="multiply", threads=128, **options):
    out = np.zeros((64, 64), np.float32)
    made = build(f"warpgroup::{kernel}", **options)
    return message(made, tiles, out, number, threads=threads, smem=SMEM_BYTES)


@pytest.mark.parametrize("checks", [False, True])
def test_the_order_of_the_words_that_is_right(tiles, checks):
    out = multiplied(tiles, 0, checks=checks)
    a, b = rounding.from_bits(tiles[:64], "fp16"), rounding.from_bits(tiles[64:], "fp16").T
    want = tensor_core.matmul(a, b, arch="sm_90", fmt="fp16")
    assert np.array_equal(out.view(np.uint32), want.view(np.uint32))


def test_until_the_wait_d_holds_nan(tiles):
    assert (multiplied(tiles, 9) == 3).all()


def test_a_wait_leaves_the_youngest_groups_in_flight(tiles):
    out = multiplied(tiles, 10)
    a, b = rounding.from_bits(tiles[:64], "fp16"), rounding.from_bits(tiles[64:], "fp16").T
    twice = [np.concatenate([x, x], axis=axis) for x, axis in ((a, 1), (b, 0))]
    want = tensor_core.matmul(*twice, arch="sm_90", fmt="fp16")
    assert np.array_equal(out.view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize(("mistake", "says"), [
    (1, "returns with a wgmma in flight: wgmma_commit and wgmma_wait<0> are missing"),
    (2, "returns with a wgmma in flight: wgmma_commit and wgmma_wait<0> are missing"),
    (3, "wgmma at {here} without a wgmma_fence since d's registers could last be touched"),
    (4, "a tile of the wgmma at {here} changed while it was in flight"),
    (5, "d of the wgmma at {here} changed while it was in flight"),
    (6, "wgmma at {here}: the lanes' descriptors differ"),
    (7, "wgmma at {here}: a descriptor without the swizzle of 128 bytes, or with a base offset"),
    (8, "wgmma of 16 bytes at {here}: shared memory out of bounds"),
])  # fmt: skip
def test_mistakes_are_named(tiles, mistake, says):
    text = complaint(tiles, mistake)
    assert says.format(here=place("warpgroup.cuh", "wgmma")) in text


@pytest.mark.parametrize("number", [11, 13], ids=["of the stores", "of a thread that multiplies"])
def test_a_missing_fence_between_stores_and_wgmma_is_told_by_the_checks(tiles, number):
    text = complaint(tiles, number, checks=True)
    assert f"wgmma at {place('warpgroup.cuh', 'wgmma')} reads shared byte" in text
    assert f"at {place('warpgroup.cuh', 'written')}, where thread" in text
    assert "wrote it: no fence_async_shared of that thread lies between" in text


def test_who_multiplies_may_make_the_fence(tiles):
    fenced, late = (multiplied(tiles, number, checks=True) for number in (0, 12))
    assert (late == fenced).all()
    assert fenced.any()


def test_all_four_warps_take_part(tiles):
    text = complaint(tiles, 0, kernel="three_warps")
    assert "warps 0 to 3 of a warpgroup issued 1, 1, 1, 0 wgmma" in text
    text = complaint(tiles, 0, threads=96)
    assert "needs 128 threads; of this warpgroup there are 96" in text


def test_an_older_tensor_core_has_no_wgmma(tiles):
    assert "needs sm_90" in complaint(tiles, 0, arch="sm_89")
