"""On the CPU, the rungs of a ladder that keep the order of sums give the same bits."""

from dataclasses import replace

import pytest
import torch

from labkernels import hardware
from labkernels.kernels import checks
from tests.kernels.backward.cases import backward_case
from tests.kernels.backward.cases import run_checked as run_backward
from tests.kernels.contract import SPECS, run_checked
from tests.kernels.decode.cases import assert_same, bits
from tests.kernels.prefill.cases import prefill_case

BASIC, WGMMA = SPECS["prefill_wgmma_basic"], SPECS["backward_wgmma"]
RUNGS = WGMMA.named_tiles(128)
OTHER_SUMS = ("fma",)  # rungs whose products are added up in another order
# several tiles that end amid a request, splits that some do not see, rows that see few keys
SHAPE = {"kv_heads": 1, "head_dim": 128, "dtype": "bf16"}


@pytest.fixture(scope="module")
def prefill():
    """Return a prefill, whose group leaves rows empty, and its result by the plain loop."""
    case = prefill_case((150, 3, 200), (333, 3, 150), group=3, **SHAPE)
    return case, run_checked(case, BASIC, keys_per_split=256)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("tile", BASIC.named_tiles(128), ids=lambda tile: tile.label)
def test_a_rung_of_prefill_gives_the_bits_of_the_plain_loop(tile, prefill, monkeypatch):
    few = replace(hardware.gpu("h200"), sm_count=2)  # so that persistent blocks take several tiles
    monkeypatch.setattr(checks, "target_gpu", lambda device, target: few)
    case, plain = prefill
    found = run_checked(case, BASIC.with_tile(tile), keys_per_split=256, checks=True)
    assert found.plan.blocks > few.sm_count
    if tile.overlap not in OTHER_SUMS:
        assert_same(found, plain)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
def test_the_rungs_of_backward_give_the_same_gradients(causal):
    """Of dk and dv: dq is added in the order in which blocks arrive."""
    assert [tile.rung for tile in RUNGS] == ["copies", "tma", "registers"]
    assert not WGMMA.named_tiles(64), "the rungs have one head_dim"
    case = backward_case((70, 3, 150), (200, 3, 130), causal=causal, group=2, **SHAPE)
    first, *others = (run_backward(case, WGMMA.with_tile(tile), checks=True) for tile in RUNGS)
    for tile, found in zip(RUNGS[1:], others, strict=True):
        assert found.plan.tile == tile.label
        for name in ("dk", "dv"):
            assert torch.equal(bits(getattr(found, name)), bits(getattr(first, name)))
