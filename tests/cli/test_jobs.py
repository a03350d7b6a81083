"""Experiments as jobs of a scheduler: here submitit's local one, and a SLURM that notes its orders.

A job gets `labkernels record NAME`, or in its place a small program, which fails or does not end.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

from labkernels import cli, experiments
from labkernels.cli.record import jobs as orders
from labkernels.cuda.compiler import nvrtc
from labkernels.experiments import jobs
from labkernels.experiments.performance import register_growth
from labkernels.records import store

submitit = pytest.importorskip("submitit")
NAME = "register_growth"
TABLE = register_growth.DATA_FILE
SLEEPS = "import time; print('begun', flush=True); time.sleep(60)"


def record(*words):
    return cli.main(["record", *map(str, words)])


def instead(monkeypatch, program):
    """Have each job run a Python program in the place of the recording."""
    monkeypatch.setattr(orders, "command", lambda name, asked: [sys.executable, "-c", program])


def until(condition, what):
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(f"not within 30 s: {what}")


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Return the folder of a job that recorded a CPU's experiment."""
    if reason := nvrtc.available():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("jobs") / "folder"
    assert record(NAME, "--quick", "--submit", folder, "--local") == 0
    return folder


@pytest.fixture
def mine(done, tmp_path):
    return shutil.copytree(done, tmp_path / "jobs")


@pytest.mark.slow
def test_a_job_leaves_the_rows_of_its_experiment(done):
    assert jobs.failures(done, NAME) == []
    assert store.read(done / NAME / TABLE)
    assert json.loads((done / jobs.SUBMITTED).read_text())["jobs"].keys() == {NAME}


@pytest.mark.slow
def test_rows_are_put_once(mine, tmp_path, capsys):
    out = tmp_path / "data"
    rows = store.read(mine / NAME / TABLE)
    for said in (f"{NAME}: {len(rows)} rows\n", ""):
        assert record("--gather", mine, "--out", out) == 0
        assert capsys.readouterr().out == said
        assert store.read(out / TABLE) == rows


@pytest.mark.slow
def test_other_files_of_a_recording_go_along_and_tables_that_grow_grow(mine, tmp_path):
    from labkernels.experiments import durations
    from labkernels.records import datapackage

    (mine / NAME / "hardware").mkdir()
    (mine / NAME / "hardware/sample.npz").write_bytes(b"1")
    origin = durations.read()[0] | {"experiment": NAME}
    durations.write(mine / NAME, origin, 6, 12.5)
    datapackage.write(mine / NAME)
    out = tmp_path / "data"
    durations.write(out, origin | {"experiment": "mla"}, 3, 1.0)
    assert record("--gather", mine, "--out", out) == 0
    assert (out / "hardware/sample.npz").read_bytes() == b"1"
    found = [(row["experiment"], row["cells"], row["seconds"]) for row in durations.read(out)]
    assert found == [("mla", 3, 1.0), (NAME, 6, 12.5)]
    assert datapackage.differences(out) == []


@pytest.mark.slow
def test_a_job_without_an_end_is_left_for_later(mine, tmp_path, capsys):
    out = tmp_path / "data"
    (mine / f"{NAME}.json").rename(tmp_path / "end")
    assert record("--gather", mine, "--out", out) == 1
    assert "gather again later" in capsys.readouterr().err
    assert not out.exists()
    (tmp_path / "end").rename(mine / f"{NAME}.json")
    assert record("--gather", mine, "--out", out) == 0
    assert (out / TABLE).exists()


@pytest.mark.slow
def test_tiny_workloads_stay_out_of_the_data(mine, capsys):
    assert record("--gather", mine) == 2
    assert "out is data/" in capsys.readouterr().err


def test_what_fails_in_a_job_is_said_at_the_end(tmp_path, monkeypatch, capsys):
    instead(monkeypatch, "import sys; sys.exit('failed: 4 sums: no memory')")
    assert record(NAME, "--submit", tmp_path / "jobs", "--local") == 1
    out, err = capsys.readouterr()
    assert err.splitlines()[-1] == f"failed: {NAME}: 4 sums: no memory"
    assert "--gather" in out
    assert "at most" in out


def test_the_jobs_after_one_that_fails_run(tmp_path, monkeypatch, capsys):
    failing = "import sys; sys.exit('failed: x' if sys.argv[1] == 'mla_bits' else 0)"
    monkeypatch.setattr(
        orders, "command", lambda name, asked: [sys.executable, "-c", failing, name]
    )
    chosen = {name: experiments.find(name) for name in ("mla_bits", NAME)}
    monkeypatch.setattr(experiments, "discover", lambda: chosen)
    assert record("--all", "--submit", tmp_path / "jobs", "--local") == 1
    assert capsys.readouterr().err.splitlines()[-1] == "failed: mla_bits: x"
    assert jobs.failures(tmp_path / "jobs", NAME) == []


def test_a_cancelled_job_is_a_failure(tmp_path, monkeypatch, capsys):
    instead(monkeypatch, SLEEPS)
    folder = tmp_path / "jobs"

    def cancel():
        until((folder / jobs.SUBMITTED).exists, "the job is submitted")
        (job,) = json.loads((folder / jobs.SUBMITTED).read_text())["jobs"].values()
        log = folder / f"jobs/{job}_0_log.out"
        until(lambda: log.exists() and "begun" in log.read_text(), "the job has begun")
        os.kill(int(job), signal.SIGINT)  # as submitit cancels a local job

    thread = threading.Thread(target=cancel)
    thread.start()
    assert record(NAME, "--submit", folder, "--local") == 1
    thread.join()
    assert f"failed: {NAME}: " in capsys.readouterr().err
    assert jobs.failures(folder, NAME)


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
    from labkernels.experiments import durations, find
    from labkernels.experiments.experiment import Options

    experiment = find(NAME)
    cells = len(experiment.chosen(Options()))
    row = {"experiment": NAME, "cells": cells, "started_utc": "", "seconds": 90.0}
    monkeypatch.setattr(durations, "read", lambda: [row])
    assert orders.minutes_of(experiment, Options()) == 13
    monkeypatch.setattr(durations, "read", list)
    assert orders.minutes_of(experiment, Options()) == orders.UNKNOWN_MINUTES


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--local", "--no-wait"), "no-wait"),
        (("--local", "--out", "elsewhere"), "out = elsewhere"),
    ],
    ids=["no-wait", "out"],
)
def test_what_does_not_go_together_is_said(tmp_path, capsys, words, said):
    assert record(NAME, "--submit", tmp_path / "jobs", *words) == 2
    assert said in capsys.readouterr().err


def test_a_folder_takes_jobs_once(tmp_path, monkeypatch, capsys):
    instead(monkeypatch, "")
    folder = tmp_path / "jobs"
    assert record(NAME, "--submit", folder, "--local") == 0
    assert record(NAME, "--submit", folder, "--local") == 2
    assert "a new folder" in capsys.readouterr().err


def test_a_folder_without_jobs_is_named(tmp_path, capsys):
    assert record("--gather", tmp_path) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_without_submitit_one_line_names_the_extra(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert record(NAME, "--submit", tmp_path / "jobs", "--local") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install 'labkernels[cluster]'" in line
    assert not (tmp_path / "jobs").exists()
