"""A kernel like the real ones has the same bits in every run, and left-out waits are named."""

import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from labkernels.cuda.compiler import sources
from labkernels.numerics import rounding
from labkernels.numerics.emulation import tensor_core
from tests.cuda.host.small_kernels import aligned, build, message, place, run

STEPS, BLOCKS, SMEM = 7, 5, 4 * 2 * 512 + 4 * 128 * 4
RNG = np.random.default_rng(7)
TILES = aligned(
    RNG.standard_normal((STEPS, 4, 256)).astype(np.float32).view(np.uint32) >> 16, np.uint16
)


def sums(host_threads=1, **options):
    kernel = build("pipeline::sum_products<pipeline::Omit::nothing>", **options)
    out = np.full((BLOCKS, 128), np.nan, np.float32)
    launch = {"grid": (BLOCKS, 1, 1), "threads": 128, "smem": SMEM, "host_threads": host_threads}
    return run(kernel, TILES, out, STEPS, **launch)


@pytest.fixture(scope="module")
def expected():
    out = sums()
    assert np.isfinite(out).all()
    return out


@pytest.mark.parametrize("host_threads", [1, 3, 16])
@pytest.mark.parametrize("checks", [False, True])
def test_every_build_has_the_bits_of_one_thread(expected, host_threads, checks):
    assert (sums(host_threads, checks=checks) == expected).all()


def test_architectures_differ_in_the_last_bits(expected):
    """Each step of a unit errs by few of the last bits that it keeps of its largest term."""
    ampere = sums(arch="sm_80")
    assert (ampere != expected).any()
    tiles = rounding.from_bits(TILES, "bf16")
    products = 16 * STEPS * np.abs(tiles).max() ** 2  # of a warp's element of d
    units = [tensor_core.unit_of(arch, "bf16") for arch in ("sm_80", "sm_90")]
    errors = sum(16 // u.chunk * (2.0**-23 + (u.chunk + 1) * 2.0**-u.fraction_bits) for u in units)
    merges = 2 * 4 * 2 * 2.0**-24  # d + total and the sum of 4 warps, on both
    terms = products + STEPS * np.abs(tiles).max()
    assert np.abs(ampere - expected).max() <= 4 * (STEPS * errors * products + merges * terms)
    assert (sums(arch="sm_120") == expected).all()


@pytest.mark.skipif(shutil.which("addr2line") is None, reason="lines come from addr2line")
@pytest.mark.parametrize(
    ("omit", "words", "markers"),
    [
        ("wait", "is in flight: no cp_async_wait lies between", ["ldmatrix"]),
        ("sync_filled", "race: reads shared byte", ["plain read"]),
        ("sync_emptied", "is in flight: no cp_async_wait lies between", ["plain read"]),
        ("sync_merge", "which no thread wrote", ["merge read"]),
    ],
)
def test_a_left_out_wait_or_barrier_is_named(omit, words, markers):
    kernel = build(f"pipeline::sum_products<pipeline::Omit::{omit}>", checks=True)
    out = np.zeros((BLOCKS, 128), np.float32)
    text = message(kernel, TILES, out, STEPS, grid=(BLOCKS, 1, 1), threads=128, smem=SMEM)
    assert "block (0, 0, 0), thread " in text
    assert words in text
    assert all(place("pipeline.cuh", marker) in text for marker in markers), text


def test_a_left_out_wait_is_seen_without_checks():
    out, launch = np.zeros((BLOCKS, 128), np.float32), {"grid": (BLOCKS, 1, 1), "threads": 128}
    kernel = build("pipeline::sum_products<pipeline::Omit::last_wait>")
    text = message(kernel, TILES, out, STEPS, **launch, smem=SMEM)
    assert "returns with 1 cp_async_16 in flight" in text
    kernel = build("pipeline::sum_products<pipeline::Omit::wait>")
    assert np.isnan(run(kernel, TILES, out, STEPS, **launch, smem=SMEM)).any()


def test_the_cache_knows_every_included_file(tmp_path):
    (tmp_path / "a.cuh").write_text('#include "b.cuh"\n')
    (tmp_path / "b.cuh").write_text('  #include "a.cuh"\n#include <none>\n#include "c.cuh"\n')
    assert list(sources.included('#include "a.cuh"', [tmp_path])) == ["a.cuh", "b.cuh"]


def test_launches_from_several_threads_do_not_meet(expected):
    with ThreadPoolExecutor(4) as pool:
        outs = list(pool.map(lambda _: sums(host_threads=2), range(24)))
    assert all((out == expected).all() for out in outs)


def test_a_fault_in_one_launch_leaves_another_alone(expected):
    kernel = build("mistakes::shared")
    inputs, outputs = np.zeros(64, np.float32), np.zeros(64, np.float32)

    def fault(_):
        return message(kernel, inputs, outputs, 2, threads=64, smem=256)

    with ThreadPoolExecutor(4) as pool:
        faults = pool.map(fault, range(12))
        outs = list(pool.map(lambda _: sums(), range(12)))
        assert all("shared memory out of bounds" in text for text in faults)
    assert all((out == expected).all() for out in outs)
