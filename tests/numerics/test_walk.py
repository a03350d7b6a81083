import numpy as np
import pytest

from labkernels.numerics import walk

RNG = np.random.default_rng(7)


def test_blocks_begin_at_multiples_and_turn_around():
    assert list(walk.blocks(5, keys=2)) == [[slice(0, 2), slice(2, 4), slice(4, 5)]]
    assert list(walk.blocks(5, keys=2, walk="backward")) == [
        [slice(4, 5), slice(2, 4), slice(0, 2)]
    ]
    split = walk.blocks(7, keys=2, keys_per_split=3)
    assert list(split) == [
        [slice(0, 2), slice(2, 3)],
        [slice(3, 5), slice(5, 6)],
        [slice(6, 7)],
    ]
    assert list(walk.blocks(0, keys=4)) == []
    assert walk.first_folded(130, keys=128, walk="backward") == slice(128, 130)
    with pytest.raises(ValueError, match="walk = 'sideways', allowed: forward, backward"):
        list(walk.blocks(1, keys=1, walk="sideways"))


@pytest.mark.parametrize("direction", walk.WALKS)
@pytest.mark.parametrize("keys_per_split", [None, 10])
def test_the_running_maximum_is_that_of_the_keys_folded_so_far(direction, keys_per_split):
    scores = RNG.standard_normal((3, 33))
    how = {"keys": 4, "walk": direction, "keys_per_split": keys_per_split}
    found = walk.running_max(scores, **how)
    for split in walk.blocks(33, **how):
        seen = np.zeros(33, bool)
        for block in split:
            seen[block] = True
            expected = np.broadcast_to(scores[:, seen].max(-1)[:, None], found[:, block].shape)
            assert (found[:, block] == expected).all()


def test_without_rounding_every_walk_is_the_attention():
    scores, v = RNG.standard_normal((2, 50)), RNG.standard_normal((2, 50, 8))
    p = np.exp2(scores) / np.exp2(scores).sum(-1, keepdims=True)
    expected = (p[:, None] @ v)[:, 0]
    for how in ({"keys": 16}, {"keys": 8, "walk": "backward", "keys_per_split": 20}):
        assert np.allclose(walk.attend(scores, v, p_format="fp32", **how), expected, rtol=1e-6)


def test_the_same_running_maximum_gives_the_same_output():
    scores, v = RNG.standard_normal((1, 300)), RNG.standard_normal((1, 300, 8))
    scores[0, 290] = 9.0  # in the block that every backward walk folds first
    small, large = (
        walk.attend(scores, v, p_format="bf16", keys=keys, walk="backward") for keys in (128, 256)
    )
    assert (small == large).all()
    scores[0, 290], scores[0, 5] = 0.0, 9.0
    small, large = (
        walk.attend(scores, v, p_format="bf16", keys=keys, walk="backward") for keys in (128, 256)
    )
    assert (small != large).any()
