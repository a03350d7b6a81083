"""A recording's rows end in a Parquet file, or wait as CSV where pyarrow is missing."""

import sys
from dataclasses import replace

import pytest

from labkernels.experiments.experiment import Experiment, Options
from labkernels.experiments.sweep import record
from labkernels.records import datapackage, store
from tests.experiments import test_harness

GROWS, RENEWED = "performance/toy.parquet", "accuracy/toy_detection.parquet"
on_gpu = test_harness.on_gpu


def rows(cell, recording):
    for name, row in test_harness.rows(cell, recording):
        yield name.replace(".csv", ".parquet"), row


OF_CSV = test_harness.TOY
TOY = Experiment(
    "toy",
    "A toy",
    {name.replace(".csv", ".parquet"): table for name, table in OF_CSV.tables.items()},
    OF_CSV.cells,
    rows,
    renewed=(RENEWED,),
)


@pytest.fixture
def said():
    return []


@pytest.fixture
def options(tmp_path, said):
    return Options(out=tmp_path, seed=99, commit="abc1234", say=said.append)


def lying(folder):
    return sorted(path.name for path in folder.rglob("toy*"))


def test_a_recording_ends_in_parquet(on_gpu, options):
    outcome = record(TOY, options)
    assert outcome.files == (options.out / GROWS, options.out / RENEWED)
    assert lying(options.out) == ["toy.parquet", "toy_detection.parquet"]
    record(TOY, replace(options, only="even"))
    assert len(store.read(options.out / GROWS)) == 6
    assert [row["kv_len"] for row in store.read(options.out / RENEWED)] == [0, 2]
    record(TOY, replace(options, replace=True))
    assert len(store.read(options.out / GROWS)) == 4
    assert lying(options.out) == ["toy.parquet", "toy_detection.parquet"]
    assert datapackage.differences(options.out) == []


def test_an_interrupted_recording_is_merged_too(on_gpu, options):
    def interrupted(cell, recording):
        if cell.of == 2:
            assert lying(options.out)[0] == "toy.journal.csv"
            raise KeyboardInterrupt
        yield from rows(cell, recording)

    record(TOY, options)
    with pytest.raises(KeyboardInterrupt):
        record(replace(TOY, rows=interrupted), options)
    assert lying(options.out) == ["toy.parquet", "toy_detection.parquet"]
    assert len(store.read(options.out / GROWS)) == 6
    assert datapackage.differences(options.out) == []


def test_without_pyarrow_the_rows_wait_as_csv_and_one_line_says_how_to_merge(
    on_gpu, options, said, monkeypatch
):
    record(TOY, options)
    said.clear()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    outcome = record(TOY, options)
    assert outcome.failures == ()
    told = [line for line in said if "pyarrow" in line]
    assert len(told) == 2
    assert told[0].startswith(
        "toy.parquet and toy.journal.csv could not be merged into toy.parquet: pyarrow, "
    )
    assert told[0].endswith(f"later: labkernels record --merge --out {options.out}")
    waiting = ["toy.journal.csv", "toy.parquet", "toy_detection.csv", "toy_detection.parquet"]
    assert lying(options.out) == waiting
    monkeypatch.undo()
    assert len(store.read(options.out / GROWS)) == 8
    assert len(store.read(options.out / RENEWED)) == 4


def test_a_damaged_table_is_a_failure_that_loses_no_row(on_gpu, options):
    record(TOY, options)
    path = options.out / GROWS
    good = path.read_bytes()
    path.write_bytes(good[:-9])
    (failure,) = record(TOY, options).failures
    assert "toy.journal.csv could not be merged into toy.parquet" in failure
    path.write_bytes(good)
    assert len(store.read(path, described=False)) == 8
