"""triton_decode is right under Triton's interpreter, at small sizes."""

import pytest

from labkernels.policy import CUDA_CORES, TENSOR_CORES
from tests.kernels.contract import DECODERS, run_checked
from tests.kernels.decode.cases import decode_case

POLICIES = pytest.mark.parametrize("policy", [TENSOR_CORES, CUDA_CORES], ids=["on", "off"])


pytestmark = pytest.mark.usefixtures("interpreted")


@POLICIES
@pytest.mark.parametrize("keys_per_split", [None, 24], ids=["unsplit", "split"])
@pytest.mark.parametrize(("group", "layout"), [(1, "nhd"), (5, "hnd"), (16, "padded")])
def test_ragged_lengths(policy, keys_per_split, group, layout):
    case = decode_case((0, 1, 16, 70), group=group, kv_heads=1, page_size=3, layout=layout)
    result = run_checked(case, "triton_decode", policy=policy, keys_per_split=keys_per_split)
    assert (result.plan.splits > 1) == (keys_per_split is not None)


@POLICIES
def test_bf16_is_right_in_spite_of_the_interpreter(policy):
    case = decode_case((0, 33, 17), kv_heads=1, dtype="bf16", layout="joint")
    for keys_per_split in (None, 16):
        run_checked(case, "triton_decode", policy=policy, keys_per_split=keys_per_split)


@POLICIES
@pytest.mark.parametrize("head_dim", [128, 256])
def test_every_head_dim(policy, head_dim):
    case = decode_case((20,), group=2, kv_heads=1, head_dim=head_dim)
    run_checked(case, "triton_decode", policy=policy)


@POLICIES
def test_every_tile(policy):
    case = decode_case((70, 3), kv_heads=2)
    for tile in DECODERS["triton_decode"].tiles(
        DECODERS["triton_decode"].shape(head_dim=64, group=16), policy
    ):
        result = run_checked(case, "triton_decode", policy=policy, tile=tile.label)
        assert result.plan.tile == tile.label
