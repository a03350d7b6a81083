"""On the CPU, the rungs between backward_mma and backward_wgmma give the same dk and dv."""

import pytest
import torch

from labkernels.kernels.registry import discover
from tests.kernels.backward.cases import backward_case, run_checked
from tests.kernels.decode.cases import bits

WGMMA = discover()["backward_wgmma"]
RUNGS = WGMMA.named_tiles(128)


@pytest.fixture(scope="module", params=[False, True], ids=["full", "causal"])
def case(request):
    """Return tiles that end amid a request, rows that see few keys, and two heads per KV head."""
    lengths = {"q_lens": (70, 3, 150), "kv_lens": (200, 3, 130)}
    how = {"causal": request.param, "group": 2, "kv_heads": 1, "head_dim": 128, "dtype": "bf16"}
    return backward_case(*lengths.values(), **how)


@pytest.fixture(scope="module")
def plain(case):
    return run_checked(case, WGMMA.with_tile(RUNGS[0]), checks=True)


@pytest.mark.parametrize("tile", RUNGS, ids=lambda tile: tile.label)
def test_a_rung_gives_the_gradients_of_the_rung_below(tile, case, plain):
    found = run_checked(case, WGMMA.with_tile(tile), checks=True)
    assert found.plan.tile == tile.label
    for name in ("dk", "dv"):  # dq is added in the order in which blocks arrive
        assert torch.equal(bits(getattr(found, name)), bits(getattr(plain, name)))


def test_the_rungs_have_one_head_dim():
    assert not WGMMA.named_tiles(64)
    assert [tile.rung for tile in RUNGS] == ["copies", "tma", "registers"]
