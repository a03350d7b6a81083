"""Stands in for a GPU: measurements run on the CPU, with made-up times."""

from contextlib import contextmanager

from labkernels.measure import telemetry, timing

GRAPH_S, EAGER_S = 1e-3, 2e-3


class Graph:
    def __init__(self, replay):
        self.replay = replay


def install(monkeypatch):
    def timed(actions, *, repeats, eager=False):
        for action in actions.values():
            action()
        median_s = EAGER_S if eager else GRAPH_S
        return {
            name: timing.Quartiles(0.9 * median_s, median_s, 1.1 * median_s, repeats)
            for name in actions
        }

    @contextmanager
    def sampling():
        yield telemetry.Reading(1980.0, 500.0, "580")

    monkeypatch.setattr(timing, "time_interleaved", timed)
    monkeypatch.setattr(timing, "capture", Graph)
    monkeypatch.setattr(telemetry, "sampling", sampling)
    copy = (timing.Quartiles(0.9, 1.0, 1.1, 20), 4_000_000_000_000)
    monkeypatch.setattr(timing, "ceilings", lambda: {"copy": copy})
