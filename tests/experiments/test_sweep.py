"""Workers and whole recordings are killed in the middle, and every row is there exactly once."""

import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from types import SimpleNamespace

import pytest
from filelock import FileLock, Timeout

from labkernels import cli
from labkernels.experiments import workers
from labkernels.experiments.sweep import Sweep, record
from labkernels.records import store
from tests.experiments import toy
from tests.repo.files import ROOT


@pytest.fixture
def options(tmp_path):
    return toy.options_in(tmp_path)


@pytest.fixture
def two(monkeypatch):
    """Have two processes measure the cells."""
    monkeypatch.setattr(workers, "executor", lambda scheduler, alone: workers.Processes(2))


def kill(options, cell, times):
    (options.out / f"deaths of {cell}").write_text(str(times))


def measured(options):
    """Return which cells have rows in the table that grows, and in the one that is renewed."""
    grown = [row["kv_len"] for row in store.read(options.out / toy.GROWS, described=False)]
    path = options.out / toy.RENEWED
    return sorted(grown), [row["kv_len"] for row in store.read(path, described=False)]


EACH = [0, 1, 2, 3, 4, 5]


def test_a_cell_whose_worker_is_killed_is_measured_by_another(options, two):
    kill(options, 2, times=1)
    kill(options, 3, times=workers.TRIES - 1)
    assert record(toy.BESIDE, options).failures == ()
    assert measured(options) == (EACH, EACH)
    assert not list(options.out.glob(".toy*"))


def test_a_cell_that_kills_every_worker_fails_and_is_measured_by_the_next_recording(options, two):
    kill(options, 4, times=workers.TRIES)
    (failure,) = record(toy.BESIDE, options).failures
    assert failure == f"cell 4: its worker was killed or crashed, {workers.TRIES} times"
    assert measured(options) == ([0, 1, 2, 3, 5],) * 2
    with pytest.raises(ValueError, match=r"repeats = 9, allowed: 50, to go on with the 5 cells in"):
        record(toy.BESIDE, replace(options, repeats=9))
    assert record(toy.BESIDE, options).failures == ()
    assert measured(options) == (EACH, EACH)


def test_a_recording_that_is_killed_goes_on(options):
    words = [sys.executable, "-m", toy.__name__, str(options.out)]
    kill(options, 3, times=1)
    assert subprocess.run(words, cwd=ROOT).returncode == -signal.SIGKILL
    assert not (options.out / toy.GROWS).exists()
    part, year = options.out / ".toy.cells.part", "2001-01-01T00:00:00Z"
    kept = re.sub(r'("started_utc": )"[^"]*"', rf'\1"{year}"', part.read_text())
    part.write_text(kept + '{"cell": "cell 3", "ro')  # a line that the next crash cuts
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert "goes on: 3 cells are in" in done.stdout, done.stderr
    assert measured(options) == (EACH, EACH)
    rows = store.read(options.out / toy.GROWS, described=False)
    assert {row["started_utc"] for row in rows} == {year}  # rows are of the recording that began


def test_an_interrupted_recording_has_its_rows_in_the_tables_and_goes_on(options, monkeypatch):
    def interrupted(self, found, number, of):
        if number == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Sweep, "_tell", interrupted)
        with pytest.raises(KeyboardInterrupt):
            record(toy.ALONE, options)
    assert measured(options) == ([0, 1], [0, 1])
    assert record(toy.ALONE, options).failures == ()
    assert measured(options) == (EACH, EACH)


def test_workers_of_dask_may_die_and_never_share_a_gpu_in_cells_that_are_timed(options):
    dask = pytest.importorskip("dask", reason="needs Dask: labkernels[cluster]")
    distributed = pytest.importorskip("distributed", reason="needs Dask: labkernels[cluster]")
    kill(options, 2, times=1)
    how = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    once = dask.config.set({"distributed.scheduler.allowed-failures": 1})
    with once, distributed.LocalCluster(**how) as cluster:
        asked = replace(options, scheduler=cluster.scheduler_address)
        assert record(toy.ALONE, asked).failures == ()
        assert measured(options) == (EACH, EACH)
        lines = (options.out / "times").read_text().splitlines()
        times = sorted(tuple(map(float, line.split())) for line in lines)
        assert all(end <= began for (_, end), (began, _) in itertools.pairwise(times))
        kill(options, 4, times=9)
        outcome = record(toy.BESIDE, asked)
        failed = [words.partition(": Attempted to run task")[0] for words in outcome.failures]
        assert "cell 4" in failed  # and perhaps one that waited for the same worker
        left = [number for number in EACH if f"cell {number}" not in failed]
        assert measured(options) == (sorted(EACH + left), left)


def test_a_cell_whose_time_counts_has_every_gpu_that_it_sees(monkeypatch, tmp_path):
    cards = [SimpleNamespace(uuid=name) for name in ("b", "a")]
    cuda = SimpleNamespace(is_available=lambda: True, device_count=lambda: 2)
    cuda.get_device_properties = cards.__getitem__
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    locks = [tmp_path / f"labkernels-{os.getuid()}" / name / ".lock" for name in ("a", "b")]

    def taken():
        for lock in locks:
            with pytest.raises(Timeout), FileLock(lock, timeout=0):
                pass
        return "done"

    assert workers.alone(taken) == "done"


def test_without_dask_or_its_scheduler_one_line_says_what_is_missing(capsys, monkeypatch):
    words = ["record", "compiler_reports", "--scheduler", "127.0.0.1:9", "--out", "nowhere"]
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert cli.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("needs Dask, which is not installed: pip install 'labkernels[cluster]'")
