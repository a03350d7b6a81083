import numpy as np
import pytest

from labkernels.chapters import two_roads

RNG = np.random.default_rng(7)


def test_blocks_begin_at_multiples_and_turn_around():
    assert list(two_roads.blocks(5, keys=2)) == [[slice(0, 2), slice(2, 4), slice(4, 5)]]
    assert list(two_roads.blocks(5, keys=2, order="descending")) == [
        [slice(4, 5), slice(2, 4), slice(0, 2)]
    ]
    split = two_roads.blocks(7, keys=2, keys_per_split=3)
    assert list(split) == [
        [slice(0, 2), slice(2, 3)],
        [slice(3, 5), slice(5, 6)],
        [slice(6, 7)],
    ]
    assert list(two_roads.blocks(0, keys=4)) == []
    assert two_roads.first_block(130, keys=128, order="descending") == slice(128, 130)
    with pytest.raises(ValueError, match="order = 'sideways', allowed: ascending, descending"):
        list(two_roads.blocks(1, keys=1, order="sideways"))


@pytest.mark.parametrize("order", ["ascending", "descending"])
@pytest.mark.parametrize("keys_per_split", [None, 10])
def test_the_running_maximum_is_that_of_the_keys_taken_so_far(order, keys_per_split):
    scores = RNG.standard_normal((3, 33))
    how = {"keys": 4, "order": order, "keys_per_split": keys_per_split}
    found = two_roads.running_max(scores, **how)
    for split in two_roads.blocks(33, **how):
        seen = np.zeros(33, bool)
        for block in split:
            seen[block] = True
            expected = np.broadcast_to(scores[:, seen].max(-1)[:, None], found[:, block].shape)
            assert (found[:, block] == expected).all()


def test_without_rounding_every_order_is_the_attention():
    scores, v = RNG.standard_normal((2, 50)), RNG.standard_normal((2, 50, 8))
    p = np.exp2(scores) / np.exp2(scores).sum(-1, keepdims=True)
    expected, size = (p[:, None] @ v)[:, 0], (p[:, None] @ np.abs(v))[:, 0]
    for how in ({"keys": 16}, {"keys": 8, "order": "descending", "keys_per_split": 20}):
        found = two_roads.attend(scores, v, p_format="fp32", **how)
        assert (np.abs(found - expected) <= 2.0**-24 * size).all()  # fp32 rounds each weight once


def test_the_same_running_maximum_gives_the_same_output():
    scores, v = RNG.standard_normal((1, 300)), RNG.standard_normal((1, 300, 8))
    scores[0, 290] = 9.0  # in the block that every descending order takes first
    small, large = (
        two_roads.attend(scores, v, p_format="bf16", keys=keys, order="descending")
        for keys in (128, 256)
    )
    assert (small == large).all()
    scores[0, 290], scores[0, 5] = 0.0, 9.0
    small, large = (
        two_roads.attend(scores, v, p_format="bf16", keys=keys, order="descending")
        for keys in (128, 256)
    )
    assert (small != large).any()
