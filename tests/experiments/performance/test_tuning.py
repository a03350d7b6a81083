"""Tests of the tuning experiment's grid and rows, without a GPU."""

from labkernels import hardware
from labkernels.budget import ranking
from labkernels.experiments.performance import tuning
from labkernels.measure.judge.outputs import Errors
from labkernels.measure.timing import Quartiles
from labkernels.measure.tuning import recorded as tuning_recorded
from labkernels.measure.tuning import search
from labkernels.records import recorded, schema, store

GOOD = Errors(rmse=1e-3, bias=0.0, max_abs=1e-2, lse2_max_abs=1e-6, bound_ratio=0.5, rmse_ratio=1.0)
BAD = Errors(
    rmse=1.0, bias=0.0, max_abs=1.0, lse2_max_abs=1e-6, bound_ratio=float("nan"), rmse_ratio=1.0
)


def test_rows_fit_their_table_and_a_wrong_output_has_no_time():
    cell = tuning.grid()[1]
    kept, rejected = search.by_ledger(search.space(cell.spec, cell.workload), hardware.gpu("h200"))
    runs = [
        search.Run(search.Candidate(instance, 200, 1000, 2), Quartiles(1.0, 2.0, 3.0, 5), errors)
        for instance, errors in zip(kept[:2], (GOOD, BAD), strict=True)
    ]
    rows = tuning.rows_of(cell.workload, rejected, runs)
    known = {field.name for field in schema.PREFILL_MEASUREMENTS.fields}
    assert all(set(row) <= known for row in rows)
    counted = [row for row in rows if row["metric"] == "rejected"]
    assert sum(row["value"] for row in counted) == len(rejected)
    assert all(row["note"].startswith("ledger: ") for row in counted)
    timed = {row["tile"] for row in rows if row["metric"] == "time"}
    assert timed == {kept[0].tile.label}
    assert [row["tile"] for row in rows if row["metric"] == "failed"] == [kept[1].tile.label]


def test_the_recorded_searches_follow_the_model():
    path = store.DATA_DIR / tuning.DATA_FILE
    rows = recorded.newest_of_each(store.read(path), ("kernel", "head_dim", "causal"))
    assert not [row["note"] for row in rows if row["metric"] == "failed"]
    searches = {}
    for tile in tuning_recorded.recorded(rows, gpu=hardware.gpu("h200")):
        searches.setdefault((tile.kernel, tile.head_dim, tile.causal), []).append(tile)
    every = {(cell.spec.name, *shape) for cell in tuning.grid() for shape in tuning.SHAPES}
    assert set(searches) >= every
    for key, tiles in searches.items():
        pair = [t.expected.time_s for t in tiles], [t.measured_s for t in tiles]
        # A random order of 9 tiles has a rank correlation above 0.4 once in seven times.
        assert ranking.rank_correlation(*pair) > 0.4, key
