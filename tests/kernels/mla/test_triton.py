"""triton_mla is right under Triton's interpreter, at small sizes."""

import pytest

from labkernels.policy import CUDA_CORES, TENSOR_CORES
from tests.kernels.contract import MLAS, run_checked
from tests.kernels.mla.cases import mla_case

KERNEL = "triton_mla"
POLICIES = pytest.mark.parametrize("policy", [TENSOR_CORES, CUDA_CORES], ids=["on", "off"])
# no query, no key, more queries than keys, four tokens, beyond a step
Q_LENS = (0, 1, 4, 2, 1, 3)
KV_LENS = (5, 0, 2, 4, 70, 33)

pytestmark = pytest.mark.usefixtures("interpreted")


@pytest.mark.one_in(3)
@POLICIES
@pytest.mark.parametrize(("heads", "page_size"), [(5, 1), (16, 16), (3, 64)])
def test_ragged_lengths(policy, heads, page_size):
    case = mla_case(Q_LENS, KV_LENS, heads=heads, page_size=page_size)
    for cut in ({"splits": 1}, {"keys_per_split": 24}):
        result = run_checked(case, KERNEL, policy=policy, **cut)
        assert (result.plan.splits > 1) == ("keys_per_split" in cut)


@POLICIES
def test_every_tile(policy):
    case = mla_case((1, 3), (40, 20), heads=24)
    for tile in MLAS[KERNEL].tiles(MLAS[KERNEL].shape(head_dim=576, rows=72), policy):
        assert run_checked(case, KERNEL, policy=policy, tile=tile.label).plan.tile == tile.label


def test_bf16_is_right_in_spite_of_the_interpreter():
    run_checked(mla_case((1, 2), (33, 5), heads=8, dtype="bf16"), KERNEL)


def test_no_query_at_all():
    assert run_checked(mla_case((0, 0), (5, 0), heads=4), KERNEL).plan.launches == 0
