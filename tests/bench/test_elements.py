"""Elements of errors know their way, request and head."""

import numpy as np

from labkernels import Prefill
from labkernels.bench import elements


def test_each_element_has_its_request_by_the_lengths_and_its_head():
    error = np.arange(3 * 2 * 4, dtype=float).reshape(3, 2, 4)
    rows = elements.rows({"mine": error}, [1, 2])
    assert rows["sample"].tolist() == [0] * 8 + [1] * 16
    assert rows["head"].tolist() == ([0] * 4 + [1] * 4) * 3
    assert rows.error.tolist() == list(range(24))
    assert set(rows.way) == {"mine"}


def test_errors_are_those_against_float64():
    work = Prefill((9, 4), (9, 4), 2, 2, 64)
    ways = {"off": {"kernel": "prefill_fma"}, "exact again": {"kernel": "reference_prefill"}}
    found = elements.errors("prefill", work, ways)
    worst = found.groupby("way").error.agg(lambda error: error.abs().max())
    assert worst["exact again"] == 0
    assert 0 < worst["off"] < 0.05
