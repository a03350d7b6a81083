"""Kernels keep their contract in every policy, with the arithmetic of every tensor core."""

import dataclasses

import numpy as np
import pytest

from labkernels import hardware, ops
from labkernels.numerics import metrics
from labkernels.numerics.truth import oracle
from labkernels.policy import NumericPolicy
from tests.kernels.contract import CUDA, CUDA_PREFILLS, RAGGED, run_checked
from tests.kernels.decode.cases import decode_case
from tests.kernels.prefill.cases import prefill_case


def changes(policy, default):
    """Return how many switches differ from the default."""
    names = [field.name for field in dataclasses.fields(policy)]
    return sum(getattr(policy, name) != getattr(default, name) for name in names)


# The other kernels switch as these do, so only their policies with one change are run.
ALL_POLICIES = ("decode_fma", "decode_mma")
POLICIES = [
    pytest.param(name, policy, id=f"{name}-{policy.label}")
    for name, spec in (CUDA | CUDA_PREFILLS).items()
    for policy in spec.policies
    if name in ALL_POLICIES or changes(policy, spec.policies[0]) <= 1
]
MANY_KEYS = 4096  # a chain of 64 steps per warp


@pytest.mark.few_of_each("kernel", 2)
@pytest.mark.parametrize(("kernel", "policy"), POLICIES)
def test_every_policy(kernel, policy):
    case = decode_case(RAGGED, group=8, seed=11)
    if kernel in CUDA_PREFILLS:
        case = prefill_case((1, 0, 40), (900, 5, 400), group=4, kv_heads=1, seed=11)
    result = run_checked(case, kernel, policy=policy, keys_per_split=300)
    assert result.plan.policy == policy.label
    assert result.plan.splits > 1


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
    out = ops.decode(case.q, case.cache, kernel=kernel, scale=case.scale, **options).out
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
    shifted = case.changed(cache=dataclasses.replace(case.cache, v=case.cache.v + 1))
    chained, promoted = (
        np.mean(error_of(shifted, kernel, p="input_x2", accumulate=accumulate))
        for accumulate in ("tensor_core", "promoted")
    )
    assert chained < -1e-6, "truncation does not shrink the sums"
    assert abs(promoted) <= abs(chained) / 10
