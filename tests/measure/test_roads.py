"""Two roads to one attention, on the CPU build: what differs, and what the walk predicts of it."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from labkernels.measure import roads  # noqa: E402

LENGTHS = (600, 300, 257, 129, 128, 1)


@pytest.fixture(scope="module")
def given():
    return roads.samples(LENGTHS)


def test_a_sample_has_the_same_bits_whatever_is_beside_it(given):
    for i, length in enumerate(LENGTHS):
        assert torch.equal(given.one(i).qkv, roads.samples((length,)).qkv)
    assert given.last_tokens.tolist() == (np.cumsum(LENGTHS) - 1).tolist()


def test_the_last_tile_alone_has_the_bits_of_the_whole_prefill(given):
    for road in (roads.VARLEN, roads.VARLEN_FIXED):
        assert torch.equal(roads.varlen(given, road), roads.varlen(given, road, whole=True))


@pytest.mark.parametrize("road", [roads.KVCACHE, roads.SPLIT], ids=lambda road: road.name)
def test_the_walk_predicts_which_heads_differ(given, road):
    found = roads.differing(roads.kvcache(given, road).out, roads.varlen(given))
    expected = roads.differing(roads.predicted(given, road), roads.predicted(given, roads.VARLEN))
    assert ((found == 0) == (expected == 0)).all()
    assert (found[4:] == 0).all(), "one block holds 128 keys on either road"
    assert (found > 0).any()


def test_a_head_whose_maximum_comes_first_does_not_differ(given):
    found = roads.differing(roads.kvcache(given).out, roads.varlen(given))
    first = roads.max_is_first(given, roads.VARLEN)
    assert first.any()
    assert not found[first].any()


def test_equal_tiles_walks_and_splits_give_equal_bits(given):
    assert torch.equal(roads.kvcache(given, roads.ALIGNED).out, roads.varlen(given))
    fixed = roads.varlen(given, roads.VARLEN_FIXED)
    assert torch.equal(roads.kvcache(given, roads.KVCACHE_FIXED).out, fixed)


def test_a_step_is_the_verb_again_and_again(given):
    expected = roads.kvcache(given, roads.SPLIT)
    run, plan = roads.kvcache_step(given, roads.SPLIT)
    for _ in range(2):
        run()
    assert plan == expected.plan


def test_predictions_and_the_truth_are_close(given):
    truth = roads.truth(given)
    assert np.abs(roads.predicted(given, roads.VARLEN) - truth).max() < 2**-6
