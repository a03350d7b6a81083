"""Every numeric policy of every CUDA kernel, and the arithmetic of every tensor core."""

import dataclasses

import pytest

from labkernels import hardware
from labkernels.kernels.spec import NumericPolicy
from tests.kernels.cases import decode_case
from tests.kernels.contract import CUDA, RAGGED, run_checked


def changes(policy):
    """How many switches differ from the default."""
    default = NumericPolicy()
    names = [field.name for field in dataclasses.fields(policy)]
    return sum(getattr(policy, name) != getattr(default, name) for name in names)


# decode_mma_n8 switches as decode_mma does: of its policies only those that differ in one place.
POLICIES = [
    pytest.param(name, policy, id=f"{name}-{policy.label}")
    for name, spec in CUDA.items()
    for policy in spec.policies
    if name != "decode_mma_n8" or changes(policy) <= 1
]


@pytest.mark.parametrize(("kernel", "policy"), POLICIES)
def test_every_policy(kernel, policy):
    case = decode_case(RAGGED, group=8, seed=11)
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
