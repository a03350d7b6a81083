"""On the CPU build, two compute paths of one attention differ where their key orders predict."""

import numpy as np
import pytest
import torch

from labkernels import formats
from labkernels.chapters import two_roads

LENGTHS = (600, 300, 257, 129, 128, 1)


@pytest.fixture(scope="module")
def given():
    return two_roads.samples(LENGTHS)


def test_a_sample_has_the_same_bits_whatever_is_beside_it(given):
    for i, length in enumerate(LENGTHS):
        assert torch.equal(given.one(i).qkv, two_roads.samples((length,)).qkv)
    assert given.last_tokens.tolist() == (np.cumsum(LENGTHS) - 1).tolist()


def test_the_last_tile_alone_has_the_bits_of_the_whole_prefill(given):
    for path in (two_roads.VARLEN, two_roads.VARLEN_FIXED):
        assert torch.equal(two_roads.varlen(given, path), two_roads.varlen(given, path, whole=True))


@pytest.mark.parametrize("path", [two_roads.KVCACHE, two_roads.SPLIT], ids=lambda path: path.name)
def test_the_key_order_predicts_which_heads_differ(given, path):
    found = two_roads.differing(two_roads.kvcache(given, path).out, two_roads.varlen(given))
    expected = two_roads.differing(
        two_roads.predicted(given, path), two_roads.predicted(given, two_roads.VARLEN)
    )
    assert ((found == 0) == (expected == 0)).all()
    assert (found[4:] == 0).all(), "one block holds 128 keys on either path"
    assert (found > 0).any()


def test_a_head_whose_maximum_comes_first_does_not_differ(given):
    found = two_roads.differing(two_roads.kvcache(given).out, two_roads.varlen(given))
    first = two_roads.max_is_first(given, two_roads.VARLEN)
    assert first.any()
    assert not found[first].any()


def test_equal_tiles_orders_and_splits_give_equal_bits(given):
    assert torch.equal(two_roads.kvcache(given, two_roads.ALIGNED).out, two_roads.varlen(given))
    fixed = two_roads.varlen(given, two_roads.VARLEN_FIXED)
    assert torch.equal(two_roads.kvcache(given, two_roads.KVCACHE_FIXED).out, fixed)


def test_predictions_and_the_truth_are_close(given):
    """The rounded weights and the store each err by the unit roundoff, times |V| at most."""
    off = np.abs(two_roads.predicted(given, two_roads.VARLEN) - two_roads.truth(given))
    unit = formats.named(two_roads.DTYPE).unit_roundoff
    for i in range(len(LENGTHS)):
        assert off[i].max() <= 2.01 * unit * np.abs(two_roads.values(given, i)).max()


def test_rows_whose_maximum_is_near_are_counted():
    k = torch.eye(4).repeat(1, 1, 1).transpose(0, 1)  # four tokens, one head, a channel each
    differ = np.array([[9], [9], [0], [5]])
    found = two_roads.equal_rows(differ, torch.roll(k, 1, 0), k, keys=2)
    # tokens 2 and 3 look at the one before them, which for token 3 lies in its own block
    assert list(found.values()) == [50, 50, 0]
