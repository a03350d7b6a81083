import numpy as np
import pytest

from labkernels.numerics.emulation.summation_order import SummationOrder


@pytest.mark.parametrize("kv_len", [0, 1, 63, 64, 200, 300])
@pytest.mark.parametrize("keys_per_split", [48, 128, 1024])
def test_every_key_has_one_place_in_its_own_split(kv_len, keys_per_split):
    steps = SummationOrder(keys_per_split, warps=4, keys=16).steps(kv_len)
    assert steps.shape[2] == 16
    assert sorted(steps[steps >= 0]) == list(range(kv_len))
    for number, keys in enumerate(steps):
        held = keys[keys >= 0]
        assert (np.diff(held) > 0).all()
        assert set(held // keys_per_split) <= {number // 4}


def test_the_warps_take_turns():
    steps = SummationOrder(1024, warps=2, keys=16).steps(70)
    assert steps.shape == (2, 3, 16)
    assert steps[:, :, 0].tolist() == [[0, 32, 64], [16, 48, -1]]


def test_lanes_are_told_apart_by_the_bits_of_a_place():
    assert SummationOrder(16, sum_bits=(1, 2)).lanes.tolist() == [
        [0, 1, 8, 9],
        [2, 3, 10, 11],
        [4, 5, 12, 13],
        [6, 7, 14, 15],
    ]
    assert SummationOrder(16, sum_bits=(0, 2, 1)).lanes[:4, 0].tolist() == [0, 1, 4, 5]
