"""triton_prefill is right under Triton's interpreter, at small sizes."""

import pytest

from labkernels.policy import CUDA_CORES, TENSOR_CORES
from tests.kernels.contract import PREFILLS, run_checked
from tests.kernels.prefill.cases import prefill_case

KERNEL = "triton_prefill"
POLICIES = pytest.mark.parametrize("policy", [TENSOR_CORES, CUDA_CORES], ids=["on", "off"])
# no query, no key, more queries than keys, a new token, beyond a tile
Q_LENS = (0, 3, 70, 1, 20, 5)
KV_LENS = (5, 1, 70, 65, 7, 0)

pytestmark = pytest.mark.usefixtures("interpreted")


@pytest.mark.one_in(3)
@POLICIES
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(("group", "layout"), [(1, "htd"), (5, "padded")])
def test_ragged_lengths(policy, causal, group, layout):
    case = prefill_case(Q_LENS, KV_LENS, causal=causal, group=group, kv_heads=1, layout=layout)
    for cut in ({"splits": 1}, {"keys_per_split": 24}):
        result = run_checked(case, KERNEL, policy=policy, **cut)
        assert (result.plan.splits > 1) == ("keys_per_split" in cut)


@pytest.mark.one_in(3)
@POLICIES
@pytest.mark.parametrize(("page_size", "layout"), [(3, "hnd"), (16, "padded"), (64, "joint")])
def test_pages(policy, page_size, layout):
    case = prefill_case(
        Q_LENS, KV_LENS, group=3, kv_heads=2, page_size=page_size, layout=layout, dtype="bf16"
    )
    run_checked(case, KERNEL, policy=policy, keys_per_split=40)


@POLICIES
@pytest.mark.parametrize("head_dim", [128, 192, 256])
def test_every_head_dim(policy, head_dim):
    for page_size in (None, 16):
        case = prefill_case((3, 20), (20, 33), head_dim=head_dim, kv_heads=1, page_size=page_size)
        run_checked(case, KERNEL, policy=policy)


@POLICIES
def test_every_tile(policy):
    case = prefill_case((70, 3), (70, 3), kv_heads=1)
    for tile in PREFILLS[KERNEL].tiles(PREFILLS[KERNEL].shape(head_dim=64, rows=140), policy):
        result = run_checked(case, KERNEL, policy=policy, tile=tile.label)
        assert result.plan.tile == tile.label


def test_packed_rows_of_bf16_are_right_in_spite_of_the_interpreter():
    case = prefill_case((33, 1), (33, 1), group=1, dtype="bf16", layout="packed")
    run_checked(case, KERNEL)


def test_no_query_at_all():
    result = run_checked(prefill_case((0, 0), (5, 0)), KERNEL)
    assert result.plan.launches == 0
