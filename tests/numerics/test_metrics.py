import numpy as np
import pytest

from labkernels.numerics import metrics


def example():
    rng = np.random.default_rng(16)
    reference = rng.standard_normal((3, 4, 5))
    error = rng.normal(0, 1e-3, reference.shape)
    return reference + error, reference


def test_groups_hold_the_right_elements():
    out, reference = example()
    error = out - reference
    table = metrics.error_table(out, reference, by="head")
    assert table.shape == (4,)
    assert table.dtype.names == metrics.COLUMNS
    for h in range(4):
        e, r = error[:, h], reference[:, h]
        assert table["rmse"][h] == pytest.approx(np.sqrt((e**2).mean()))
        assert table["max_abs"][h] == np.abs(e).max()
        assert table["mean_signed"][h] == pytest.approx((e * np.sign(r)).mean())
        assert table["rel_l2"][h] == pytest.approx(np.linalg.norm(e) / np.linalg.norm(r))
    assert metrics.error_table(out, reference, by="sample").shape == (3,)
    both = metrics.error_table(out, reference, by="sample_and_head")
    assert both.shape == (3, 4)
    assert both["max_abs"][2, 1] == np.abs(error[2, 1]).max()
    everything = metrics.error_table(out, reference, by="all")
    assert everything.shape == ()
    assert everything["rmse"] == pytest.approx(np.sqrt((error**2).mean()))


def test_log_sum_exps_have_no_last_axis_and_may_be_infinite():
    reference = np.array([[-np.inf, 1.0], [2.0, -np.inf]])
    out = np.array([[-np.inf, 1.5], [2.0, 0.0]])
    table = metrics.error_table(out, reference, by="sample_and_head")
    assert table["max_abs"].tolist() == [[0, 0.5], [0, np.inf]]
    assert table["rel_l2"][0, 0] == 0
    assert table["different"].tolist() == [[0, 1], [0, 1]]


@pytest.mark.parametrize("place", ["out", "reference"])
def test_nan_surfaces_in_its_group_alone(place):
    pair = dict(zip(("out", "reference"), example(), strict=True))
    pair[place][1, 2, 3] = np.nan
    table = metrics.error_table(**pair, by="head")
    for column in metrics.COLUMNS[:-1]:
        assert np.isnan(table[column]).tolist() == [False, False, True, False], column
    assert table["different"][2] == 1.0
    both_nan = np.full((1, 1, 2), np.nan)
    assert np.isnan(metrics.error_table(both_nan, both_nan, by="all")["rmse"])
    assert metrics.error_table(both_nan, both_nan, by="all")["different"] == 1


def test_zero_reference_and_nothing_at_all():
    zeros = np.zeros((1, 1, 2))
    assert metrics.error_table(zeros, zeros, by="all")["rel_l2"] == 0
    assert metrics.error_table(zeros + 1, zeros, by="all")["rel_l2"] == np.inf
    nothing = metrics.error_table(np.zeros((0, 2, 4)), np.zeros((0, 2, 4)), by="head")
    assert [nothing[name].tolist() for name in metrics.COLUMNS] == [[0, 0]] * 5
    with pytest.raises(ValueError, match=r"out\.shape = \(2, 1\), allowed: .*\(1, 2\)"):
        metrics.difference(np.zeros((2, 1)), np.zeros((1, 2)))
    with pytest.raises(ValueError, match="by = 'tile', allowed: all, head, sample"):
        metrics.error_table(np.zeros((1, 1)), np.zeros((1, 1)), by="tile")
