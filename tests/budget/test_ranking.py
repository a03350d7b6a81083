import math

import pytest

from labkernels.budget.ranking import best_so_far, rank_correlation, runs_to_reach


def test_the_same_order_is_one_and_the_other_way_round_minus_one():
    assert math.isclose(rank_correlation([1, 2, 5, 9], [10, 20, 21, 400]), 1)
    assert math.isclose(rank_correlation([1, 2, 5], [3, 2, 1]), -1)
    # ties share their ranks, 1, 2.5, 2.5, 4 against 1, 2, 3, 4: 4.5 / sqrt(4.5 * 5)
    assert math.isclose(rank_correlation([1, 2, 2, 3], [1, 2, 3, 4]), 4.5 / math.sqrt(22.5))


def test_the_model_gets_no_credit_for_an_order_it_does_not_give():
    assert best_so_far([1, 1, 2], [4, 2, 1]) == [0.25, 0.5, 1]
    assert runs_to_reach(0.5, [1, 1, 2], [4, 2, 1]) == 2
    assert runs_to_reach(0.98, [3, 2, 1], [100, 101, 300]) == 2


def test_what_has_no_order_is_refused():
    with pytest.raises(ValueError, match="same number of data points"):
        rank_correlation([1, 2], [1])
    with pytest.raises(ValueError, match="constant"):
        rank_correlation([1, 1], [1, 2])
