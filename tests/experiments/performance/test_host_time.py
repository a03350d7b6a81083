"""Tests of the experiment on the host's time per call, without a GPU."""

import contextlib
import types

import pytest

from labkernels.experiments import harness
from labkernels.experiments.experiment import Options
from labkernels.experiments.harness import record
from labkernels.experiments.performance import host_time
from labkernels.measure import telemetry
from labkernels.records import store


def test_a_repeat_is_many_calls_between_two_waits(monkeypatch):
    done = []
    clock = iter(range(100))  # warm after the first call
    monkeypatch.setattr(host_time.time, "perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(host_time, "WARMUP_S", 2.0)
    how = {"wait": lambda: done.append("wait"), "calls": 4}
    times = host_time.host_times(lambda: done.append("call"), repeats=2, **how)
    repeat = ["wait", *["call"] * 4]
    assert done == ["call", "wait", *repeat, *repeat, "wait"]
    assert (times.median_s, times.repeats) == (0.25, 2)
    longer = host_time.host_times(lambda: None, repeats=2, span_s=8.0, **how)
    assert longer.repeats == 3  # a repeat takes three seconds of this clock


@pytest.mark.long
def test_every_call_runs_and_its_rows_fit(monkeypatch, tmp_path):
    """On the CPU build each call is a whole computation, so a repeat is one call."""
    once = host_time.host_times
    monkeypatch.setattr(
        host_time, "host_times", lambda action, **how: once(action, **how | {"calls": 1})
    )
    facts = {"gpu": "FAKE", "driver": "1", "cuda": "13", "torch": "2", "triton": ""}
    monkeypatch.setattr(harness, "gpu_missing", lambda: None)
    monkeypatch.setattr(harness.Recording, "device", "cpu")
    monkeypatch.setattr(telemetry, "facts", lambda: facts)

    @contextlib.contextmanager
    def sampling():
        yield types.SimpleNamespace(sensors={"sm_clock_mhz": 1.0, "power_w": 1.0})

    monkeypatch.setattr(telemetry, "sampling", sampling)
    options = Options(out=tmp_path, quick=True, repeats=2, commit="abc1234", say=lambda line: None)
    outcome = record(host_time.EXPERIMENT, options)
    assert outcome.failures == ()
    rows = store.read(tmp_path / host_time.DATA_FILE)
    assert len(rows) == outcome.rows == 3 * len(host_time.calls())
    assert {(row["metric"], row["unit"], row["repeats"]) for row in rows} == {("host_time", "s", 2)}
    assert [row["kernel"] for row in rows[::3]] == [call.name for call in host_time.calls()]
