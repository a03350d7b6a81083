"""Decode chooses kernels and tiles, and rounds where its policy says."""

import re

import numpy as np
import pytest
import torch

from labkernels import hardware, ops
from labkernels.kernels.registry import discover
from labkernels.numerics import metrics
from labkernels.numerics.truth import oracle
from labkernels.policy import NumericPolicy
from tests.kernels.contract import RAGGED, run_checked
from tests.kernels.decode.cases import decode_case

KV_LENS = (33, 5)
MANY_KEYS = 4096  # a chain of 64 steps per warp


def test_defaults_are_the_preferred_kernel_and_a_fresh_output():
    for group, kernel in ((4, "decode_mma_n8"), (8, "decode_mma_n8"), (16, "decode_mma")):
        case = decode_case(KV_LENS, group=group)
        result = ops.decode(case.q, case.cache)
        assert result.plan.kernel == kernel
        assert result.out.shape == case.q.shape
        assert result.out.dtype == case.q.dtype
        assert result.lse2.dtype == torch.float32


@pytest.mark.parametrize("key", hardware.GPUS)
def test_the_default_tile_fits_the_gpu_that_is_planned_for(key):
    gpu = hardware.gpu(key)
    for spec in discover().values():
        if spec.language != "cuda" or not spec.needs.include(gpu.arch):
            continue
        for head_dim in spec.head_dims:
            for group in (1, 2, 4, 8, 16):
                shape = spec.shape(dtype="bf16", head_dim=head_dim, group=group)
                instance, first = spec.instance(shape, gpu=gpu), spec.instance(shape)
                assert spec.smem(instance).total <= gpu.smem_per_block_max_bytes
                assert spec.blocks_per_sm(instance, gpu) >= 1
                options = spec.tiles(shape, instance.policy)
                assert first.tile == options[0]
                if spec.smem(first).total <= gpu.smem_per_block_max_bytes:
                    assert instance.tile == options[0]


def test_a_tile_that_does_not_fit_the_gpu_is_refused():
    gpu, mma = hardware.gpu("a10"), discover()["decode_mma"]
    large, *_ = mma.tiles(mma.shape(head_dim=256, group=16), mma.policies[0])
    case = decode_case((5,), head_dim=256)
    message = f"tile = {large.label}, allowed for decode_mma in 101,376 B of NVIDIA A10: "
    with pytest.raises(ValueError, match=re.escape(message)):
        ops.decode(case.q, case.cache, kernel="decode_mma", tile=large.label, target="a10")
    plan = ops.decode(case.q, case.cache, kernel="decode_mma", target="a10").plan
    assert plan.smem_bytes <= gpu.smem_per_block_max_bytes
    assert plan.blocks_per_sm >= 1


@pytest.mark.parametrize("target", ["a100", "l40s"])
def test_tensor_cores_of_other_gpus(target):
    case = decode_case(RAGGED, group=8, seed=11)
    arch = hardware.gpu(target).arch
    run_checked(case, "decode_mma", target=target, arch=arch)


def test_policies_round_where_they_say():
    """A wider output shows what the 16-bit store hid; a coarser exp2 changes what is stored."""
    case = decode_case(RAGGED, group=8, seed=11)
    rough = NumericPolicy(exp2="poly3", out="fp32")
    outs = {
        policy: run_checked(case, "decode_mma", policy=policy).out.double()
        for policy in (NumericPolicy(), NumericPolicy(out="fp32"), rough)
    }
    stored, wide, coarse = outs.values()
    assert (stored == wide.half().double()).all()
    assert (wide != wide.half().double()).any()
    assert (wide != coarse).any()


def error_of(case, kernel, **policy):
    """Return the error of a long chain against float64, with an fp32 output."""
    options = {"policy": NumericPolicy(**policy, out="fp32"), "keys_per_split": MANY_KEYS}
    out = case.run(kernel, **options).out
    truth, _ = case.once("truth", lambda: oracle.attention(case.problem()))
    return metrics.difference(out.double().numpy(), truth)


@pytest.mark.parametrize("kernel", ["decode_mma", "decode_mma_n8"])
def test_what_the_costly_policies_gain(kernel):
    """P in two parts hides the rounding of P; promoted sums are not made smaller by truncation."""
    case = decode_case((MANY_KEYS,), group=8, kv_heads=1, dtype="bf16")
    plain, split = (
        metrics.rms(error_of(case, kernel, p=p), by="all") for p in ("input", "input_x2")
    )
    assert plain / split >= 50
    shifted = case.with_kv(v=case.cache.v + 1)
    chained, promoted = (
        np.mean(error_of(shifted, kernel, p="input_x2", accumulate=accumulate))
        for accumulate in ("tensor_core", "promoted")
    )
    assert chained < -1e-6, "truncation does not shrink the sums"
    assert abs(promoted) <= abs(chained) / 10
