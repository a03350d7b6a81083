"""The explorer of tolerances has Python's numbers; tables and figures of a page are read right."""

from pathlib import Path

import node
import numpy as np
import pandas as pd
import pytest

from labkernels import plots
from labkernels.records import store
from labkernels.widgets import tolerances

SEED, N_CASES, N_ELEMENTS = 3, 60, 50
LINE, N_BINS, PER_DECADE = 24, 40, 4  # bins of a histogram: six decades within, four outside
SELECTIONS = [("all", "all"), ("bf16", "all"), ("fp16", "8177")]
COLUMNS = [
    {"texts": ["10", "9", "–", "1e3", "-2"], "down": False},
    {"texts": ["10", "9", "–", "1e3", "-2"], "down": True},
    {"texts": ["0.4 ms", "12,000 ms", "3 ms"], "down": False},
    {"texts": ["fma 10", "mma", "", "fma 9"], "down": False},
]
ORDERS = [[4, 1, 0, 3, 2], [3, 0, 1, 4, 2], [0, 2, 1], [3, 0, 1, 2]]
# along a series, to the next, at the first value, and by a key that has no meaning
STEPPED = [{"series": 0, "value": 1}, {"series": 1, "value": 0}, {"series": 0, "value": 0}, None]
SERIES = [
    {
        "name": "on", "panel": "", "x": "heads", "y": "ms", "values": [["1", "2"], ["8", "4", "7"]],
        "places": [[1000, 1000, 9000, 5000], []],
    },
    {
        "name": "off", "panel": "", "x": "", "y": "", "values": [["3", "4"]],
        "places": [[5000, 5000], []],
    },
]  # fmt: skip


def cases():
    draw = np.random.default_rng(SEED)
    for i in range(N_CASES):
        right = draw.standard_normal(N_ELEMENTS)
        found = right + 10.0 ** draw.uniform(-5, -1) * draw.standard_normal(N_ELEMENTS)
        found = np.where(draw.random(N_ELEMENTS) < 0.02 * (i % 2), np.nan, found)
        atol, rtol = 10.0 ** draw.uniform(-6, 0, 2)
        yield {"found": found, "right": right, "atol": atol, "rtol": rtol}


def as_json(case):
    found = [None if np.isnan(x) else x for x in case["found"]]
    return {**case, "found": found, "right": case["right"].tolist()}


@pytest.fixture(scope="module")
def found(needs_node):
    at = {"width": 100, "height": 100}
    figure = {
        "series": SERIES,
        "places": [{"left": 52, "top": 49, **at}, {"left": 50, "top": 95, **at}],
        "keys": [
            ({"series": 0, "value": 1}, "ArrowRight"),
            ({"series": 0, "value": 1}, "ArrowDown"),
            ({"series": 0, "value": -1}, "ArrowRight"),
            ({"series": 0, "value": 0}, "x"),
        ],
    }
    given = {
        "data": tolerances.data(),
        "selections": SELECTIONS,
        "cases": [as_json(case) for case in cases()],
        "columns": COLUMNS,
        "figure": figure,
    }
    script = Path(__file__).parent / "scripts" / "tolerance_of_cases.mjs"
    return node.run(script, given=given)


@pytest.mark.parametrize("number", range(len(SELECTIONS)))
def test_a_page_counts_as_the_figure_of_the_chapter_does(found, number):
    dtype, keys = SELECTIONS[number]
    rows = pd.DataFrame(store.read("detection"))
    rows = rows[(rows.device != "CPU build") & ((rows.dtype == dtype) | (dtype == "all"))]
    rows = rows[rows.kv_len.astype(str) == keys] if keys != "all" else rows
    right = plots.refused_shares(rows.fillna({"mutant": ""}), "mutant")
    for bug, counts in found["summed"][number]:
        page = [100 * refused / runs for runs, refused in counts]
        assert page == pytest.approx(list(right.loc[bug, list(tolerances.ORDER)]), rel=1e-12), bug
    assert len(found["summed"][number]) == len(right)


def test_a_page_judges_as_numpy_does(found):
    for page, case in zip(found["outside"], cases(), strict=True):
        close = np.isclose(case["found"], case["right"], case["rtol"], case["atol"])
        assert page == N_ELEMENTS - close.sum()
    assert len(set(found["outside"])) > N_CASES // 4


def test_a_histogram_has_every_element_on_its_side_of_the_tolerance(found):
    edges = 10 ** (
        np.arange(LINE + 1, N_BINS) / PER_DECADE - LINE / PER_DECADE
    )  # right of the line
    for bins, outside, case in zip(found["bins"], found["outside"], cases(), strict=True):
        assert sum(bins) == N_ELEMENTS
        assert sum(bins[LINE:]) == outside
        allowed = case["atol"] + case["rtol"] * np.abs(case["right"])
        share = np.abs(case["found"] - case["right"]) / allowed
        share = np.nan_to_num(share, nan=np.inf)[~(share <= 1)]
        right = np.bincount(np.searchsorted(edges, share), minlength=N_BINS - LINE)
        assert bins[LINE:] == right.tolist()


def test_a_page_orders_a_table_and_finds_its_way_in_a_figure(found):
    assert found["orders"] == ORDERS  # numbers by size, words by letters
    assert found["nearest"] == [{"series": 1, "value": 0}, None]
    assert found["stepped"] == STEPPED
    assert found["words"] == "on: heads 8; ms 4; value 7"
