"""triton_backward is right under Triton's interpreter, at small sizes."""

import pytest

from labkernels.policy import CUDA_CORES, TENSOR_CORES
from tests.kernels.backward.cases import BACKWARDS, GRADIENTS, backward_case, run_checked

KERNEL = "triton_backward"
POLICIES = pytest.mark.parametrize("policy", [TENSOR_CORES, CUDA_CORES], ids=["on", "off"])
# no query, no key, more queries than keys, beyond a tile
Q_LENS = (0, 3, 70, 20, 5)
KV_LENS = (5, 1, 65, 40, 0)

pytestmark = pytest.mark.usefixtures("interpreted")


@pytest.mark.one_in(3)
@POLICIES
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(("group", "layout"), [(1, "htd"), (3, "padded")])
def test_ragged_lengths(policy, causal, group, layout):
    case = backward_case(Q_LENS, KV_LENS, causal=causal, group=group, kv_heads=1, layout=layout)
    run_checked(case, KERNEL, policy=policy)


@POLICIES
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_every_tile(policy, head_dim):
    case = backward_case((20, 3), (33, 3), head_dim=head_dim, kv_heads=1, dtype="fp16")
    for tile in BACKWARDS[KERNEL].tiles(BACKWARDS[KERNEL].shape(head_dim=head_dim, rows=1), policy):
        assert run_checked(case, KERNEL, policy=policy, tile=tile.label).plan.tile == tile.label


def test_bf16_is_right_in_spite_of_the_interpreter():
    run_checked(backward_case((33, 1), (33, 1), group=1, dtype="bf16", causal=True), KERNEL)


def test_its_one_order_serves_those_who_do_not_ask():
    case = backward_case((20, 3), (33, 3), kv_heads=1)
    labels = {run_checked(case, KERNEL, deterministic=x).plan.tile for x in (False, True)}
    assert len(labels) == 1


def test_no_query_and_no_key_at_all():
    for q_lens, kv_lens in (((0, 0), (5, 0)), ((3, 40), (0, 0)), ((0,), (0,))):
        step = run_checked(backward_case(q_lens, kv_lens), KERNEL)
        assert not any(getattr(step, name).any() for name in GRADIENTS)
