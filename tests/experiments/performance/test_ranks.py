"""What ranks record of attention, on processes of this machine's CPU."""

import pytest

from labkernels.distributed import on_cpus
from labkernels.experiments.performance import ranks
from labkernels.records import schema

GRID = [(2, of) for of in ranks.QUICK] + [(4, of) for of in ranks.QUICK if of.operation != "decode"]


@pytest.mark.parametrize(("size", "of"), GRID, ids=lambda x: getattr(x, "operation", None))
def test_rows_hold_the_bits_of_one_process(size, of):
    found = list(ranks.together(on_cpus(ranks.on_rank, size, of, 0, "cpu")))
    columns = set(schema.TABLES["ranks"].columns)
    assert all(set(row) <= columns for row in found)
    compared = [row for row in found if row["outputs"]]
    ring = ["ring", "ring again", "ring in a graph"]
    ways = {"decode": ["gather", "heads", "scatter"] * 2, "prefill": ring * 2, "backward": ring}
    ways["projection"] = ["all-reduce"] * 2
    assert [row["way"] for row in compared] == ways[of.operation]
    # parts in 16 bits are added in 16 bits
    exact = [row for row in compared if (row["way"], row["carry"]) != ("scatter", "input")]
    assert [row["other"] for row in exact] == [0] * len(exact)
    assert {row["unstable"] for row in compared} == {0}


def test_times_are_those_of_the_slowest_rank_and_outputs_are_added():
    row = {"way": "gather", "outputs": 3, "other": 1, "unstable": 0, "time": 2.0}
    (both,) = ranks.together([[row], [row | {"time": 3.0, "other": 0}]])
    assert both == row | {"outputs": 6, "other": 1, "time": 3.0}
