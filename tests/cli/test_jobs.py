"""Recordings as jobs of a scheduler, carried from another machine, or ended by a signal.

A job gets `labkernels record NAME`, or in its place a small program, which fails or does not end.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from labkernels import cli, experiments
from labkernels.cli.record import jobs as orders
from labkernels.cli.record import process
from labkernels.cuda.compiler import nvrtc
from labkernels.experiments import durations, jobs, sweep
from labkernels.experiments.experiment import Options
from labkernels.experiments.performance import compiler_reports
from labkernels.records import datapackage, store

pytest.importorskip("submitit")
NAME = "compiler_reports"
TABLE = compiler_reports.DATA_FILE
SLEEPS = "import time; print('begun', flush=True); time.sleep(60)"


def record(*words):
    return cli.main(["record", *map(str, words)])


def instead(monkeypatch, program):
    """Have each job run a Python program in the place of the recording."""
    monkeypatch.setattr(orders, "command", lambda name, asked: [sys.executable, "-c", program])


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Return the folder of a job that recorded a CPU's experiment."""
    if reason := nvrtc.available():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("jobs") / "folder"
    assert record(NAME, "--quick", "--only", "decode_fma", "--submit", folder, "--local") == 0
    return folder


@pytest.fixture
def mine(done, tmp_path):
    return shutil.copytree(done, tmp_path / "jobs")


@pytest.mark.long
def test_rows_of_a_job_are_put_once_beside_those_that_are_there(mine, tmp_path, capsys):
    out, rows = tmp_path / "data", store.read(mine / NAME / TABLE)
    assert rows
    assert jobs.failures(mine, NAME) == []
    assert json.loads((mine / jobs.SUBMITTED).read_text())["jobs"].keys() == {NAME}
    assert record("--gather", mine) == 2
    assert "out is data/" in capsys.readouterr().err, "tiny workloads stay out of the data"
    (mine / NAME / "hardware").mkdir()
    (mine / NAME / "hardware/sample.npz").write_bytes(b"1")
    origin = durations.read()[0] | {"experiment": NAME}
    durations.write(mine / NAME, origin, 6, 12.5)
    datapackage.write(mine / NAME)
    durations.write(out, origin | {"experiment": "mla"}, 3, 1.0)
    for _ in range(2):
        assert record("--gather", mine, "--out", out) == 0
        assert capsys.readouterr().out == f"{NAME}: {len(rows)} rows\n"
        assert store.read(out / TABLE) == rows
    assert (out / "hardware/sample.npz").read_bytes() == b"1"
    found = [(row["experiment"], row["cells"], row["seconds"]) for row in durations.read(out)]
    assert found == [("mla", 3, 1.0), (NAME, 6, 12.5)]
    assert datapackage.differences(out) == []


@pytest.mark.long
def test_a_job_without_an_end_is_left_for_later(mine, tmp_path, capsys):
    out = tmp_path / "data"
    (mine / f"{NAME}.json").rename(tmp_path / "end")
    assert record("--gather", mine, "--out", out) == 1
    assert "gather again later" in capsys.readouterr().err
    assert not out.exists()


def test_the_jobs_after_one_that_fails_run_and_its_failure_is_said(tmp_path, monkeypatch, capsys):
    failing = "import sys; sys.exit('failed: x' if sys.argv[1] == 'mla_bits' else 0)"
    monkeypatch.setattr(
        orders, "command", lambda name, asked: [sys.executable, "-c", failing, name]
    )
    chosen = {name: experiments.find(name) for name in ("mla_bits", NAME)}
    monkeypatch.setattr(experiments, "discover", lambda: chosen)
    assert record("--all", "--submit", tmp_path / "jobs", "--local") == 1
    out, err = capsys.readouterr()
    assert err.splitlines()[-1] == "failed: mla_bits: x"
    assert "--gather" in out
    assert jobs.failures(tmp_path / "jobs", NAME) == []


def test_what_cannot_be_submitted_is_said_in_a_line(tmp_path, monkeypatch, capsys):
    instead(monkeypatch, "")
    folder = tmp_path / "jobs"
    assert record(NAME, "--submit", folder, "--local") == 0
    submit = (NAME, "--submit", tmp_path / "other")
    for words, said in (
        ((NAME, "--submit", folder, "--local"), "a new folder"),
        ((*submit, "--local", "--no-wait"), "no-wait"),
        ((*submit, "--local", "--out", "elsewhere"), "out = elsewhere"),
        (("--gather", tmp_path), str(tmp_path)),
    ):
        assert record(*words) == 2
        assert said in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert record(*submit, "--local") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install 'labkernels[cluster]'" in line
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2], ids=lambda n: n.name)
def test_a_scheduler_s_signal_ends_the_recording_and_is_noted(tmp_path, number):
    words = [sys.executable, "-c", SLEEPS]
    own = f"jobs.measure(pathlib.Path({str(tmp_path)!r}), 'mla', {words!r})"
    work = f"import pathlib; from labkernels.cli.record import jobs; {own}"
    with subprocess.Popen([sys.executable, "-c", work], stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout.readline() == "begun\n"
        job.send_signal(number)
        assert job.wait(30) == 0
    assert jobs.failures(tmp_path, "mla") == ["ended by a signal; what was measured before is kept"]


def test_slurm_gets_an_order_for_one_gpu(tmp_path, monkeypatch, capsys):
    for name in ("srun", "sbatch"):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\ncp $1 {tmp_path}/order\necho Submitted batch job 77\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    folder = tmp_path / "jobs"
    asked = ("--partition", "night", "--minutes", 17, "--no-wait")
    assert record(NAME, "--submit", folder, *asked) == 0
    assert f"{NAME}: job 77, at most 17 min\n" in capsys.readouterr().out
    order = (tmp_path / "order").read_text().splitlines()
    for line in ("--partition=night", "--time=17", "--gpus-per-node=1", "--nodes=1"):
        assert f"#SBATCH {line}" in order
    assert jobs.failures(folder, NAME) is None


def test_the_time_limit_is_twice_the_last_recording_and_ten_minutes(monkeypatch):
    experiment = experiments.find(NAME)
    cells = len(experiment.chosen(Options()))
    row = {"experiment": NAME, "cells": cells, "started_utc": "", "seconds": 90.0}
    monkeypatch.setattr(durations, "read", lambda: [row])
    assert orders.minutes_of(experiment, Options()) == 13
    monkeypatch.setattr(durations, "read", list)
    assert orders.minutes_of(experiment, Options()) == orders.UNKNOWN_MINUTES


OTHER = "host_time"


def recorded(folder, name, cells=None):
    """Fill a folder as a recording does that comes to its end, and return its rows."""
    experiment = experiments.find(name)
    (table,) = experiment.tables
    rows = store.read(table.partition("/")[2].partition(".")[0])[:5]
    store.append(folder / table, rows, experiment.tables[table])
    cells = cells or len(list(experiment.cells(Options())))
    durations.write(folder, durations.read()[0] | rows[0] | {"experiment": name}, cells, 12.5)
    return rows


def test_a_folder_of_two_experiments_gives_each_its_own_rows(tmp_path, capsys):
    carried, out = tmp_path / "carried", tmp_path / "data"
    found = {name: recorded(carried, name) for name in (NAME, OTHER)}
    datapackage.write(carried)
    (table,) = experiments.find(OTHER).tables
    store.append(out / table, found[OTHER][:2], experiments.find(OTHER).tables[table])
    assert record("--gather", carried, "--out", out) == 0
    lines = {f"{name}: {len(rows)} rows" for name, rows in found.items()}
    assert set(capsys.readouterr().out.splitlines()) == lines
    assert record("--gather", carried, "--out", out) == 0
    assert [row["experiment"] for row in durations.read(out)].count(NAME) == 1
    assert store.read(out / TABLE) == found[NAME]
    assert store.read(out / table) == found[OTHER]


def test_a_recording_that_did_not_come_to_its_end_is_refused(tmp_path, capsys):
    rows = store.read(NAME)[:5]
    store.append(tmp_path / "carried" / TABLE, rows, experiments.find(NAME).tables[TABLE])
    assert record("--gather", tmp_path / "carried", "--out", tmp_path / "data") == 2
    assert "`record --out` to its end" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_a_part_stays_out_of_a_table_that_must_be_whole(tmp_path, monkeypatch, capsys):
    assert compiler_reports.EXPERIMENT.whole
    out = tmp_path / "data"
    recorded(tmp_path / "carried", NAME, cells=1)
    monkeypatch.setattr(store, "DATA_DIR", out)
    assert record("--gather", tmp_path / "carried", "--out", out) == 2
    assert "must be whole" in capsys.readouterr().err
    assert not out.exists()


# A program that sends SIGTERM to its parent, and writes a file 0.5 s after it gets SIGTERM.
WRITES_LATE = """
import os, signal, sys, time
def stop(number, frame):
    time.sleep(0.5)
    open({kept!r}, "w").close()
    sys.exit(130)
signal.signal(signal.SIGTERM, stop)
os.kill(os.getppid(), signal.SIGTERM)
time.sleep(30)
"""


@pytest.fixture(autouse=True)
def handlers_as_before():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_sigterm_is_an_interruption(capsys, monkeypatch):
    def measure(experiment, options):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(30)
        finally:  # where a recording writes its rows
            os.kill(os.getpid(), signal.SIGTERM)
            written.append(True)

    written = []
    monkeypatch.setattr(sweep, "record", measure)
    assert cli.main(["record", "decode_tensor_cores"]) == 130
    assert written == [True]
    assert capsys.readouterr().err == "labkernels: interrupted; what was measured before is kept\n"


def test_all_waits_until_the_child_has_written(tmp_path, monkeypatch, capsys):
    kept = tmp_path / "kept"
    start = subprocess.Popen

    def instead(command, **options):
        return start([sys.executable, "-c", WRITES_LATE.format(kept=str(kept))], **options)

    monkeypatch.setattr(process.subprocess, "Popen", instead)
    monkeypatch.setattr("labkernels.cli.record._experiments", lambda asked: ["decode_bits  1 cell"])
    assert cli.main(["record", "--all", "--out", str(tmp_path)]) == 130
    assert kept.exists()
