"""Requests alone and in a batch: heads that change as the cuts say, and what that costs."""

import numpy as np
import pytest

from labkernels.chapters import same_bits, two_roads
from labkernels.records import store

SHAPE = (len(same_bits.LENGTHS), two_roads.HEADS)
# Requests whose cut the batch changes, longest first: a decode's splits of 256 keys become one;
# of a prefill only those of 384 keys become 256.
CHANGED = {"decode_mma": (1, 1, 1, 1, 1, 1, 1, 0), "prefill_mma": (0, 0, 0, 0, 1, 0, 1, 0)}


@pytest.mark.parametrize("kernel", CHANGED)
def test_the_rule_names_each_head_that_changes(kernel):
    operation, given = kernel.split("_")[0], same_bits.requests()
    alone, joined = (
        f(operation, given, kernel=kernel) for f in (same_bits.alone, same_bits.together)
    )
    found = same_bits.differing(alone, joined) > 0
    assert (found == np.array(CHANGED[kernel], bool)[:, None]).all()
    assert ((same_bits.predicted(operation, given, alone, joined) > 0) == found).all()
    exact = same_bits.truth(operation, given)
    assert np.linalg.norm(joined.out - exact) < 4e-3 * np.linalg.norm(
        exact
    )  # twice bf16's rounding


@pytest.mark.parametrize("kernel", CHANGED)
def test_an_invariant_plan_keeps_every_bit(kernel):
    operation, given = kernel.split("_")[0], same_bits.requests()
    how = {"kernel": kernel, "batch_invariant": True}
    alone, joined = (f(operation, given, **how) for f in (same_bits.alone, same_bits.together))
    assert same_bits.differing(alone, joined).shape == SHAPE
    assert not same_bits.differing(alone, joined).any()


def test_a_lead_raises_the_scores_of_recent_keys_alone():
    plain = two_roads.samples((300, 129))
    led = two_roads.with_recent_lead(plain, 10.0, half=8)
    for i in range(2):
        gain = two_roads.scores_log2(led, i) - two_roads.scores_log2(plain, i)
        expected = 10 * 0.5 ** (np.arange(gain.shape[1])[::-1] / 8)
        assert np.abs(gain - expected).max() < 0.1  # bf16 rounds 64 products of each raised key
    assert (two_roads.values(led, 0) == two_roads.values(plain, 0)).all()


def test_prices_are_those_of_the_same_workload():
    price = same_bits.prices(store.read("batch_invariance"))
    assert (price[price["plan"] == "free"].times == 1).all()
    long = price[(price.kv_len == 131072) & (price.dtype == "bf16") & (price.operation == "decode")]
    by_plan = long.set_index("plan")
    assert (
        by_plan.times["unsplit"] > 10 > 2 > by_plan.times["256 keys"] > by_plan.times["invariant"]
    )
    assert by_plan["keys_per_split"]["invariant"] == 0  # the plan chooses it by the length


def test_certificates_are_summed_by_kernel_and_options():
    one = {"kernel": "decode_mma", "ways": 17, "changed": 0, "first": "", "heads": 0}
    changed = one | {"asked": "", "changed": 3, "first": "in a batch of 8", "heads": 32}
    found = same_bits.certified([one | {"asked": "splits=1"}, one | {"asked": ""}, changed])
    assert found.to_numpy().tolist() == [
        ["decode_mma", "splits=1", 17, 0, 0, ""],
        ["decode_mma", "free plan", 34, 3, 32, "in a batch of 8"],
    ]
