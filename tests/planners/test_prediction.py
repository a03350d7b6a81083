"""Predicted heads: the running maximum of each cut decides."""

import numpy as np
import pytest

from labkernels.numerics.emulation.running_max import attend, blocks
from labkernels.planners import Cut
from labkernels.planners.cut import even
from labkernels.planners.prediction import changed_heads

HEADS, N, D = 40, 512, 64
RNG = np.random.default_rng(3)
SCORES, V = RNG.standard_normal((HEADS, N)) * 1.4, RNG.standard_normal((HEADS, N, D))


def cut(split=None, **how):
    return Cut("a library", 64, 128, (even(N, split),), **how)


def test_a_cut_changes_no_bit_of_its_own():
    assert not changed_heads(SCORES, V, cut(128), cut(128), dtype="bf16").any()
    moved = Cut("a library", 16, 128, (even(7), even(N, 128)))
    found = changed_heads(SCORES, V, cut(128), moved, dtype="bf16", requests=(0, 1))
    assert not found.any()  # the rows of a tile do not matter


def test_a_head_changes_unless_the_maximum_lies_where_both_cuts_begin():
    """Four splits of 128 against two of 256, of two tiles each, taken from the last.

    A lower tile keeps its maximum only if that of the upper tile is smaller.
    """
    most = SCORES.reshape(HEADS, 4, 128).max(-1)
    kept = (most[:, 0] > most[:, 1]) & (most[:, 2] > most[:, 3])
    found = changed_heads(SCORES, V, cut(128), cut(256), dtype="bf16")
    assert (found == ~kept).all()
    assert 0 < kept.sum() < HEADS


def test_partial_outputs_in_16_bits_change_every_head_and_p_in_fp32_changes_none():
    rounded = {"partials": "input"}
    found = changed_heads(SCORES, V, cut(128, **rounded), cut(**rounded), dtype="bf16")
    assert found.all()
    exact = {"p": "fp32"}
    assert changed_heads(SCORES, V, cut(128, **exact), cut(**exact), dtype="bf16").sum() <= 1


def test_chains_divide_each_tile_and_keep_maxima_of_their_own():
    assert list(blocks(10, keys=4, chains=2)) == [
        [slice(0, 2), slice(4, 6), slice(8, 10)],
        [slice(2, 4), slice(6, 8)],
    ]
    assert list(blocks(5, keys=4, keys_per_split=4, chains=4))[3:] == [[slice(3, 4)], [slice(4, 5)]]
    with pytest.raises(ValueError, match="chains = 3, allowed: divisors of keys = 4"):
        list(blocks(5, keys=4, chains=3))
    with pytest.raises(ValueError, match="order = 'sideways', allowed: ascending, descending"):
        list(blocks(1, keys=1, order="sideways"))


def test_exact_partials_are_the_attention_itself():
    how = {"p_format": "fp64", "keys": 128, "keys_per_split": 128}
    whole, merged = (attend(SCORES, V, partials=partials, **how) for partials in ("", "fp64"))
    size = np.abs(V).mean(axis=1)
    assert (np.abs(whole - merged) <= 2.0**-48 * size).all()  # float64 sums of 512 products
