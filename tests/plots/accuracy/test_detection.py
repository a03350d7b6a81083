import numpy as np
import pandas as pd
import pytest

from labkernels import plots
from tests.plots.conftest import ORIGIN, draw


def counts():
    rows = [
        ("dropped key", "verdict", 8, 8),
        ("dropped key", "cosine", 8, 2),
        ("P truncated", "verdict", 8, 8),
        ("P truncated", "cosine", 8, 0),
        ("P truncated", "verdict", 400, 399),
        ("P truncated", "cosine", 400, 1),
        ("wrong scale", "verdict", 200, 199),
        ("wrong scale", "cosine", 200, 1),  # half a percent is not 0 either
    ]
    return pd.DataFrame(rows, columns=["mutant", "rule", "runs", "refused"])


def right():
    rows = [("bf16", "verdict", 1000, 0), ("bf16", "cosine", 1000, 250)]
    return pd.DataFrame(rows, columns=["dtype", "rule", "runs", "refused"])


def test_shares_are_of_all_runs_and_keep_the_order():
    shares = plots.refused_shares(counts(), "mutant")
    assert list(shares) == ["verdict", "cosine"]
    assert list(shares.index) == ["dropped key", "P truncated", "wrong scale"]
    assert shares.loc["dropped key", "cosine"] == 25
    assert shares.loc["P truncated", "verdict"] == pytest.approx(100 * 407 / 408)


def test_matrix_says_each_share_and_rounds_none_to_all_or_nothing():
    wrong, fine = (
        plots.refused_shares(counts(), "mutant"),
        plots.refused_shares(right(), "dtype"),
    )
    figure = draw(plots.detection_matrix(wrong, fine, origin=ORIGIN))
    above, below = figure.axes
    assert [text.get_text() for text in above.texts] == ["100", "25", *[">99", "<1"] * 2]
    assert [text.get_text() for text in below.texts] == ["0", "25"]
    assert [label.get_text() for label in above.get_yticklabels()] == list(wrong.index)
    assert [label.get_text() for label in above.get_xticklabels()] == list(wrong)
    assert np.array_equal(above.collections[0].get_array(), wrong)
    assert figure.get_supxlabel() == ORIGIN


def test_matrix_needs_the_same_rules_in_both_parts():
    wrong = plots.refused_shares(counts(), "mutant")
    with pytest.raises(ValueError, match="rules of right"):
        plots.detection_matrix(wrong, wrong[["cosine"]], origin=ORIGIN)
