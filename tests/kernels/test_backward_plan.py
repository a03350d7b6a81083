"""The order in which a backward pass's blocks start."""

import itertools

import numpy as np
import pytest

from labkernels.kernels import backward_plan
from labkernels.kernels.prefill_plan import Lengths
from labkernels.kernels.spec import BackwardTile

LENGTHS = Lengths(np.array([70, 0, 300, 1000]), np.array([90, 40, 300, 700]))


def blocks(*, causal, last_keys_first):
    return backward_plan.cut(
        LENGTHS,
        BackwardTile(64, 128, 12, 2, 1),
        kv_heads=3,
        group=2,
        head_dim=128,
        causal=causal,
        l2_bytes=2_000_000,
        last_keys_first=last_keys_first,
    ).keys


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_either_order_has_every_tile_once(causal):
    first, last = (blocks(causal=causal, last_keys_first=x) for x in (False, True))
    assert len(np.unique(first, axis=0)) == len(first) == 3 * (1 + 1 + 3 + 6)
    assert np.array_equal(np.unique(first, axis=0), np.unique(last, axis=0))


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_a_block_that_waits_starts_after_those_with_later_keys(causal):
    started = blocks(causal=causal, last_keys_first=True)
    for request, head in itertools.product(range(4), range(3)):
        tiles = started[(started[:, 0] == request) & (started[:, 2] == head), 1]
        assert np.all(np.diff(tiles) == -1)
        assert tiles[-1] == 0
