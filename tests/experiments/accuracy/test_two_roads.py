"""Tests of the experiment of two roads, without a GPU."""

import pytest

torch = pytest.importorskip("torch")

from labkernels.chapters import two_roads as chapters_two_roads  # noqa: E402
from labkernels.experiments.accuracy import two_roads  # noqa: E402
from labkernels.measure.timing import quartiles  # noqa: E402
from labkernels.records import schema  # noqa: E402

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


def test_rows_fit_their_tables(found):
    given = chapters_two_roads.samples(LENGTHS)
    found.add("theirs", "torch", "varlen", lambda: 1 / 0)
    plan = chapters_two_roads.kvcache(given, chapters_two_roads.KVCACHE).plan
    times = {"kvcache": (quartiles([1e-6, 2e-6, 3e-6]), plan)}
    rows = two_roads.rows_of(given, found, times)
    known = {field.name for field in schema.MEASUREMENTS.fields}
    assert all(set(row) <= known for row in rows)
    assert [row["note"] for row in rows if row["metric"] == "refused"] == ["division by zero"]
    heads = two_roads.head_rows(given, found)
    stamp = {"started_utc": "2026-12-01T09:30:00Z"}
    assert all(schema.validate(stamp | row, schema.TABLES["two_roads_heads"]) for row in heads)
    per_road = len(LENGTHS) * chapters_two_roads.HEADS
    assert len(heads) == 4 * per_road
