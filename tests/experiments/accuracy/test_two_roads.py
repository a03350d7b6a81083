"""Tests of the experiment of two roads, without a GPU."""

import pytest

torch = pytest.importorskip("torch")

from labkernels.chapters import two_roads as chapters_two_roads  # noqa: E402
from labkernels.experiments.accuracy import two_roads  # noqa: E402

LENGTHS = (300, 129, 100)


@pytest.fixture(scope="module")
def found():
    made = two_roads.Found()
    two_roads.our_outputs(chapters_two_roads.samples(LENGTHS), made)
    return made


def test_aligned_roads_are_equal_and_the_others_are_not(found):
    rows = two_roads.rows_of(chapters_two_roads.samples(LENGTHS), found, {})
    total = {row["kernel"]: row["value"] for row in rows if row["metric"] == "different_channels"}
    assert (
        total[chapters_two_roads.ALIGNED.name] == total[chapters_two_roads.KVCACHE_FIXED.name] == 0
    )
    assert total[chapters_two_roads.KVCACHE.name] > 0
    alone = {row["kernel"]: row["value"] for row in rows if row["metric"] == "different_alone"}
    assert alone[chapters_two_roads.ALIGNED.name] == alone[chapters_two_roads.KVCACHE.name] == 0
