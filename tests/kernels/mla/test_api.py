"""The verb mla_decode chooses a kernel and a tile, and the verdict takes its results."""

import re

import numpy as np
import pytest
import torch

import labkernels
from labkernels import hardware, ops
from labkernels.kernels import choice as arguments
from labkernels.kernels.caches.latent import LATENT_DIM, ROPE_DIM, LatentKV
from labkernels.kernels.kernel import HOPPER
from labkernels.kernels.mla.wgmma.launch import box_keys
from labkernels.kernels.mla.wgmma.spec import TILE
from labkernels.kernels.packed_gqa.schedule import Schedule
from labkernels.kernels.registry import discover
from tests.kernels.contract import CUDA_MLAS
from tests.kernels.decode.cases import bits
from tests.kernels.mla.cases import mla_case

every_kernel = pytest.mark.parametrize("kernel", CUDA_MLAS)


@pytest.mark.parametrize("key", hardware.GPUS)
def test_what_is_chosen_is_what_the_gpu_can_run_and_is_said(key):
    gpu = hardware.gpu(key)
    case = mla_case((1,), (20,), heads=128)
    plan = case.run(None, target=key).plan
    best = arguments.preferred("mla")
    able = [spec.name for spec in best if arguments.missing(spec, gpu) is None]
    assert plan.kernel == able[0]
    assert plan.why.startswith(f"{able[0]}: the first of ")
    assert gpu.name in plan.why
    assert all(spec.name in plan.why for spec in best)
    assert plan.smem_bytes <= gpu.smem_per_block_max_bytes
    named = case.run("mla_fma", target=key).plan
    assert named.kernel == "mla_fma"
    assert named.why.startswith("mla_fma: named by the caller")


def test_few_rows_do_not_fill_a_tile_of_wgmma():
    """The kernel that is chosen for 128 heads is not chosen for 16, but runs if it is named."""
    wide, few = (mla_case((1,), (20,), heads=heads) for heads in (128, 16))
    assert wide.run(None).plan.kernel == "mla_wgmma"
    plan = few.run(None).plan
    assert plan.kernel == "mla_mma"
    assert "mla_wgmma is for 17 rows or more" in plan.why
    assert few.run("mla_wgmma").plan.kernel == "mla_wgmma"


@pytest.mark.parametrize(
    ("key", "tile"), [("h200", "64x64x8x2x1"), ("a100", "64x32x8x2x1"), ("rtx4090", "64x16x8x1x1")]
)
def test_the_tile_follows_shared_memory(key, tile):
    case = mla_case((1,), (20,), heads=128)
    plan = case.run("mla_mma", target=key).plan
    assert plan.tile == tile
    assert plan.why.endswith(f"; tile {tile}: the first that fits")


def test_a_named_kernel_that_the_gpu_cannot_run_is_refused_and_the_choice_is_named():
    newer = discover()["mla_mma"]
    hopper = newer.changed(name="mla_hopper", needs=HOPPER)
    case = mla_case((1,), (20,))
    for key in ("a100", "b200"):
        gpu = hardware.gpu(key)
        message = f"kernel = 'mla_hopper' needs sm_90a, this is {gpu.name} ({gpu.arch}, "
        with pytest.raises(ValueError, match=re.escape(message)) as caught:
            case.run(hopper, target=key)
        assert "which would be chosen if none were named" in str(caught.value)
        assert case.run(None, target=key).plan.kernel in str(caught.value)
    assert hopper.needs.include("sm_90")
    assert not hopper.needs.include("sm_100")


@every_kernel
def test_one_token_a_request_needs_no_lengths(kernel):
    case = mla_case((1, 1, 1), (70, 0, 17), heads=16)
    inputs = (case.q_nope, case.q_pe, case.kv)
    for causal in (False, True):
        result = ops.mla_decode(*inputs, kernel=kernel, causal=causal)
        assert torch.equal(bits(result.out), bits(case.run(kernel).out))


@every_kernel
def test_the_verdict_is_rounding(kernel):
    case = mla_case((1, 2), (150, 300), heads=16)
    result = case.run(kernel)
    found = labkernels.verdict(
        result.out,
        (case.q_nope, case.q_pe),
        cache=case.kv,
        cu_seqlens_q=case.cu_seqlens_q,
        causal=True,
        lse2=result.lse2,
        p_format=CUDA_MLAS[kernel].policies[0].p_format("bf16"),
    )
    assert found.answer == "ROUNDING", found.summary()


def latent_kv(page_size: int, *, spare_keys: int = 0) -> LatentKV:
    """Return two pages, each followed by `spare_keys` keys of another tensor."""
    ckv, kpe = (
        torch.zeros(2, page_size + spare_keys, channels, dtype=torch.bfloat16)[:, :page_size]
        for channels in (LATENT_DIM, ROPE_DIM)
    )
    table = torch.tensor([[0, 1]], dtype=torch.int32)
    return LatentKV(ckv, kpe, table, torch.tensor([page_size], dtype=torch.int32))


@pytest.mark.parametrize(
    ("page_size", "splits", "keys_per_split", "expected"),
    [
        *((n, 1, 70, keys) for n, keys in ((1, 0), (3, 0), (8, 8), (16, 16), (24, 8), (64, 64))),
        *((n, 1, 70, keys) for n, keys in ((96, 32), (256, 64))),
        *((64, 3, cut, keys) for cut, keys in ((128, 64), (80, 16), (72, 8), (70, 0))),
    ],
)
def test_whole_boxes_make_a_page_and_a_split(page_size, splits, keys_per_split, expected):
    """A box of the tensor maps has so many keys that whole boxes make a page and a split."""
    cut = Schedule(np.zeros((0, 4), np.int32), keys_per_split, splits, 0)
    assert box_keys(latent_kv(page_size), cut, TILE.keys) == expected
    assert box_keys(latent_kv(page_size, spare_keys=8), cut, TILE.keys) == 0, "pages lie apart"
