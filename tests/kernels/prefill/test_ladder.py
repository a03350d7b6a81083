"""On the CPU, the rungs of prefill_wgmma_basic that keep the order of sums give the same bits."""

from dataclasses import replace

import pytest
import torch

from labkernels import hardware
from labkernels.kernels import checks
from labkernels.kernels.registry import discover
from tests.kernels.contract import run_checked
from tests.kernels.decode.cases import bits
from tests.kernels.prefill.cases import prefill_case

BASIC = discover()["prefill_wgmma_basic"]
OTHER_SUMS = ("fma",)  # rungs whose products are added up in another order


def case():
    """Return several tiles, splits that some do not see, and a group that leaves rows empty."""
    return prefill_case(
        (150, 3, 200), (333, 3, 150), causal=True, group=3, kv_heads=1, head_dim=128, dtype="bf16"
    )


@pytest.fixture(scope="module")
def plain():
    return run_checked(case(), BASIC, keys_per_split=256)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("tile", BASIC.named_tiles(128), ids=lambda tile: tile.label)
def test_a_rung_gives_the_bits_of_the_plain_loop(tile, plain, monkeypatch):
    few = replace(hardware.gpu("h200"), sm_count=2)  # so that persistent blocks take several tiles
    monkeypatch.setattr(checks, "target_gpu", lambda device, target: few)
    found = run_checked(case(), BASIC.with_tile(tile), keys_per_split=256, checks=True)
    assert found.plan.blocks > few.sm_count
    if tile.overlap not in OTHER_SUMS:
        assert torch.equal(bits(found.out), bits(plain.out))
        assert torch.equal(bits(found.lse2), bits(plain.lse2))
