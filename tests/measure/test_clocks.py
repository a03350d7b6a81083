"""Times are taken in turns, and clock and power are read beside them."""

import math
import sys
from collections import Counter

import pytest

from labkernels.measure import telemetry, timing


def test_quartiles_of_known_times():
    times = timing.quartiles([4.0, 1.0, 3.0, 2.0, 5.0])
    assert (times.q25_s, times.median_s, times.q75_s, times.repeats) == (2.0, 3.0, 4.0, 5)
    for times_s in ([1.0], [1.0, 0.0], [1.0, -1.0], [1.0, math.nan]):
        with pytest.raises(ValueError, match="times_s .*allowed"):
            timing.quartiles(times_s)


def test_turns_are_fair():
    order = list(timing.turns(["a", "b", "c"], 6))
    assert Counter(order) == {"a": 6, "b": 6, "c": 6}
    assert order[:6] == ["a", "b", "c", "b", "c", "a"]
    firsts = Counter(order[::3])
    assert firsts == {"a": 2, "b": 2, "c": 2}


class FakeClock:
    """Device time that only actions move, and a log of what was run."""

    def __init__(self):
        self.now_s = 0.0
        self.log = []

    def action(self, name, cost_s):
        def run():
            self.log.append(name)
            self.now_s += cost_s

        return run

    def stopwatch(self, action):
        start_s = self.now_s
        action()
        elapsed_s = self.now_s - start_s
        return lambda: elapsed_s


def test_interleaved_times_hold_only_the_action():
    clock = FakeClock()
    actions = {"ours": clock.action("ours", 2.0), "peer": clock.action("peer", 3.0)}
    times = timing.interleave(
        actions,
        repeats=3,
        warmup=2,
        prepare=clock.action("scrub", 100.0),
        stopwatch=clock.stopwatch,
    )
    assert times == {"ours": [2.0] * 3, "peer": [3.0] * 3}
    # Every run, warm-up runs too, comes right after a scrub.
    assert clock.log[::2] == ["scrub"] * 10
    assert clock.log[1::2] == ["ours"] * 2 + ["peer"] * 2 + [
        "ours",
        "peer",
        "peer",
        "ours",
        "ours",
        "peer",
    ]


@pytest.fixture
def nvidia_smi(monkeypatch):
    """Stand in for nvidia-smi with a program that prints one line."""

    def answer(text):
        import subprocess

        def start(identity):
            command = [sys.executable, "-c", f"print({text!r})"]
            return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

        monkeypatch.setattr(telemetry, "_identity", lambda: "GPU-1")
        monkeypatch.setattr(telemetry, "_start", start)

    return answer


def test_clock_and_power_are_read_while_the_body_runs(nvidia_smi):
    nvidia_smi("1980, 512.34, 580.159.04")
    with telemetry.sampling() as reading:
        assert reading.sensors == {"sm_clock_mhz": 0.0, "power_w": 0.0}
    assert reading.sensors == {"sm_clock_mhz": 1980.0, "power_w": 512.34}
    assert reading.driver == "580.159.04"


@pytest.mark.parametrize("text", ["", "No devices were found", "[N/A], [N/A], "])
def test_what_it_does_not_tell_is_zero_or_unknown(nvidia_smi, text):
    nvidia_smi(text)
    with telemetry.sampling() as reading:
        pass
    assert reading == telemetry.Reading()


def test_without_the_tool_nothing_is_read(monkeypatch):
    monkeypatch.setattr(telemetry, "_identity", lambda: "GPU-1")
    monkeypatch.setattr(telemetry, "_start", lambda identity: None)
    with telemetry.sampling() as reading:
        pass
    assert reading == telemetry.Reading()
    assert telemetry.version("no-such-package-anywhere") == ""
    assert "Python 3." in telemetry.host()
