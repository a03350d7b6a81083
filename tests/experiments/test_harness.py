"""`record` completes rows, keeps what was measured before a failure, and refuses bad requests."""

import os
from dataclasses import replace

import pytest

from labkernels.experiments import durations, harness, workers
from labkernels.experiments.experiment import Cell, Experiment, Options
from labkernels.experiments.sweep import record
from labkernels.records import datapackage, schema, store

GROWS, RENEWED = "performance/toy.parquet", "accuracy/toy_detection.parquet"


def cells(options):
    for number in range(2 if options.quick else 4):
        yield Cell(f"cell {number}, {'even' if number % 2 == 0 else 'odd'}", number)


def rows(cell, recording):
    if cell.of == recording.options.seed:
        raise RuntimeError("it broke")
    recording.tell(f"measured {cell.of}")
    shape = ("batch", "kv_len", "q_heads", "kv_heads", "head_dim", "page_size")
    named = {"kernel": "toy", "backend": "cuda", **dict.fromkeys(shape, cell.of)}
    number = {"metric": "time", "statistic": "median", "value": cell.of, "unit": "s"}
    yield GROWS, {**named, **number, "repeats": 7}
    judged = {"mutant": "", "family": "normal", "dtype": "bf16", "kv_len": cell.of}
    answers = {"rule": "a", "runs": 1, "refused": 0, "undecided": 0}
    yield RENEWED, {"kernel": "toy", **judged, **answers}


TOY = Experiment(
    "toy",
    "A toy",
    {GROWS: schema.MEASUREMENTS, RENEWED: schema.TABLES["detection"]},
    cells,
    rows,
    renewed=(RENEWED,),
)


@pytest.fixture
def options(tmp_path):
    return Options(out=tmp_path, seed=99, commit="abc1234-dirty", say=lambda line: None)


def test_rows_are_completed_with_what_their_table_knows_of_the_recording(on_gpu, options):
    outcome = record(TOY, options)
    assert (outcome.rows, outcome.failures) == (8, ())
    assert outcome.files == (options.out / GROWS, options.out / RENEWED)
    for row in store.read(options.out / GROWS):
        assert (row["experiment"], row["gpu"], row["repeats"]) == ("toy", "FAKE", 7)
        assert (row["commit"], row["dirty"], row["seed"]) == ("abc1234", True, 99)
    for row in store.read(options.out / RENEWED):
        assert (row["device"], row["commit"]) == ("FAKE", "abc1234")
    assert (options.out / "datapackage.json").exists()


def test_a_cell_that_fails_leaves_the_others_to_be_measured(on_gpu, options):
    said = []
    outcome = record(TOY, replace(options, seed=1, say=said.append))
    assert len(outcome.failures) == 1
    assert outcome.failures[0].startswith("cell 1, odd: RuntimeError: it broke (test_harness.py:")
    assert len(store.read(options.out / GROWS)) == 3
    assert "2/4 cell 1, odd: failed" in said[2]
    assert "3/4 cell 2, even: measured 2" in said[3]
    assert durations.read(options.out) == []


def test_a_row_that_does_not_fit_its_table_is_a_failure(on_gpu, options):
    wrong = replace(TOY, rows=lambda cell, recording: [(GROWS, {"kernel": "toy"})])
    outcome = record(wrong, options)
    assert len(outcome.failures) == 4
    assert "backend is missing" in outcome.failures[0]


def test_among_the_committed_data_a_part_does_not_take_the_place_of_the_whole(
    on_gpu, options, monkeypatch
):
    monkeypatch.setattr(store, "DATA_DIR", options.out)
    record(TOY, options)
    earlier = [
        row | {"started_utc": "2026-12-01T09:30:00Z"} for row in store.read(options.out / GROWS)
    ]
    store.replace(options.out / GROWS, earlier)
    datapackage.write(options.out)
    record(TOY, replace(options, only="even"))
    assert len(store.read(options.out / GROWS)) == 6
    assert len(store.read(options.out / RENEWED)) == 4
    record(TOY, replace(options, seed=0))
    assert len(store.read(options.out / RENEWED)) == 4
    with pytest.raises(ValueError, match="quick is on; allowed: --quick with --out FOLDER"):
        record(TOY, replace(options, quick=True))
    whole = replace(TOY, whole=True)
    for asked in ({"quick": True}, {"only": "even"}):
        with pytest.raises(ValueError, match="must be whole; allowed: --out FOLDER"):
            record(whole, replace(options, **asked))


def test_what_cannot_be_recorded_is_said(on_gpu, options, monkeypatch):
    assert [c.of for c in TOY.chosen(replace(options, only="cell 0|odd"))] == [0, 1, 3]
    lacking = replace(TOY, needs_gpu=False, missing=lambda: "there is no profiler")
    for experiment, asked, told in (
        (TOY, {"only": "nothing"}, r"only is 'nothing' and matches nothing; .*'cell 0, even'"),
        (TOY, {"repeats": 1}, "repeats is 1; allowed: 2 or more"),
        (lacking, {}, "toy cannot be recorded here: there is no profiler"),
    ):
        with pytest.raises(ValueError, match=told):
            record(experiment, replace(options, **asked))
    monkeypatch.setattr(harness, "gpu_missing", lambda: "no NVIDIA GPU can be used")
    with pytest.raises(ValueError, match="toy needs a GPU: no NVIDIA GPU can be used"):
        record(TOY, options)


def test_without_a_gpu_the_device_is_the_cpu_build(options, monkeypatch):
    monkeypatch.setattr(harness, "gpu_missing", lambda: "no NVIDIA GPU can be used")
    judged = replace(TOY, needs_gpu=False, rows=lambda *given: [list(rows(*given))[1]])
    record(judged, options)
    assert {row["device"] for row in store.read(options.out / RENEWED)} == {harness.CPU}


def test_a_recording_is_timed_and_the_next_one_is_told(on_gpu, options, monkeypatch):
    said = []
    asked = replace(options, say=said.append)
    monkeypatch.setattr(store, "DATA_DIR", options.out)
    record(TOY, asked)
    assert said[0].endswith("toy on FAKE, 4 cells, commit abc1234 with changes, not yet measured")
    (row,) = durations.read(options.out)
    assert (row["experiment"], row["cells"], row["device"]) == ("toy", 4, "FAKE")
    record(TOY, asked)
    assert "with changes, about " in said[5]


def test_an_estimate_is_in_proportion_to_the_largest_recording():
    def recorded(cells, seconds, day):
        found = {"experiment": "toy", "cells": cells, "seconds": seconds}
        return found | {"started_utc": f"2026-12-{day:02}T09:30:00Z"}

    known = [recorded(4, 80.0, 1), recorded(4, 40.0, 2), recorded(1, 90.0, 3)]
    assert durations.estimate("toy", 4, known) == 40.0
    assert durations.estimate("toy", 1, known) == 10.0
    assert durations.estimate("another", 1, known) is None
    assert durations.words(None) == "not yet measured"
    assert durations.words(40.0) == "about 40 s"
    assert durations.words(500.0) == "about 8 min"


def test_each_of_many_cores_gets_one_thread(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    with workers.all_cores() as found:
        assert found._max_workers == 8
        assert found.submit(os.getenv, "OMP_NUM_THREADS").result() == "1"
