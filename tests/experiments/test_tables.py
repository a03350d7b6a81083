"""A recording's rows end in a Parquet file, or in a CSV file where pyarrow is missing."""

import sys
from dataclasses import replace

import pytest

from labkernels import cli
from labkernels.experiments.experiment import Options
from labkernels.experiments.sweep import record
from labkernels.records import datapackage, store
from tests.experiments.test_harness import GROWS, RENEWED, TOY, rows


@pytest.fixture
def options(tmp_path):
    return Options(out=tmp_path / "data", seed=99, commit="abc1234", say=lambda line: None)


def lying(folder):
    return sorted(path.name for path in folder.rglob("toy*"))


def test_a_recording_ends_in_parquet(on_gpu, options):
    record(TOY, options)
    assert lying(options.out) == ["toy.parquet", "toy_detection.parquet"]
    record(TOY, replace(options, only="even"))
    assert [row["kv_len"] for row in store.read(options.out / RENEWED)] == [0, 2]
    record(TOY, replace(options, replace=True))
    assert len(store.read(options.out / GROWS)) == 4
    assert datapackage.differences(options.out) == []


def test_without_pyarrow_the_rows_are_csv_until_they_are_gathered(
    on_gpu, options, tmp_path, monkeypatch
):
    monkeypatch.setattr("labkernels.experiments.jobs.discover", lambda: {"toy": TOY})
    carried = replace(options, out=tmp_path / "carried")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pyarrow", None)
        assert record(TOY, carried).failures == ()
    assert lying(carried.out) == ["toy.csv", "toy_detection.csv"]
    assert cli.main(["record", "--gather", str(carried.out), "--out", str(options.out)]) == 0
    assert lying(options.out) == ["toy.parquet", "toy_detection.parquet"]
    assert len(store.read(options.out / GROWS)) == len(store.read(options.out / RENEWED)) == 4
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match="pip install pyarrow; allowed: --out NEW FOLDER"):
        record(TOY, options)


def test_a_table_that_cannot_be_read_is_told_before_the_first_cell(on_gpu, options):
    record(TOY, options)
    path = options.out / GROWS
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match="toy.parquet is not the file that datapackage.json"):
        record(TOY, options)


def test_a_table_that_cannot_be_written_loses_no_row(on_gpu, options):
    def spoiled(cell, recording):
        path = recording.options.out / GROWS
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"PAR1")
        yield from rows(cell, recording)

    with pytest.raises(ValueError, match="toy.parquet is damaged or cut"):
        record(replace(TOY, rows=spoiled), options)
    (options.out / GROWS).unlink()
    assert record(TOY, options).failures == ()
    assert len(store.read(options.out / GROWS)) == 4
