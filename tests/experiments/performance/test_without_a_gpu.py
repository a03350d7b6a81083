"""Experiments on speed make rows that fit their tables, here without a GPU."""

import pytest

from labkernels import hardware
from labkernels.budget import ranking
from labkernels.experiments.experiment import Options
from labkernels.experiments.performance import backward, host_time, prefill
from labkernels.experiments.sweep import record
from labkernels.measure.tuning import recorded as tuning_recorded
from labkernels.records import recorded, store


def test_grids_have_the_sizes_of_the_papers_and_baselines_the_flops_of_their_cells():
    cells = [cell.workload for cell in backward.grid()]
    assert len(cells) == 24
    assert {sum(work.q_lens) for work in cells} == {16384}
    assert {work.q_heads * work.head_dim for work in cells} == {2048}
    for cell in prefill.grid():
        if cell.baseline is not None:
            assert cell.baseline.flops == pytest.approx(cell.workload.flops, rel=0.005)


def test_the_recorded_searches_follow_the_model():
    rows = recorded.newest_of_each(store.read("tuning"), ("kernel", "head_dim", "causal"))
    assert not [row["note"] for row in rows if row["metric"] == "failed"]
    searches = {}
    for tile in tuning_recorded.recorded(rows, gpu=hardware.gpu("h200")):
        searches.setdefault((tile.kernel, tile.head_dim, tile.causal), []).append(tile)
    shapes = ((64, False), (128, False), (128, True), (256, False))
    assert set(searches) >= {("prefill_mma", *shape) for shape in shapes}
    for key, tiles in searches.items():
        pair = [t.expected.time_s for t in tiles], [t.measured_s for t in tiles]
        # A random order of 9 tiles has a rank correlation above 0.4 once in seven times.
        assert ranking.rank_correlation(*pair) > 0.4, key


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
def test_every_call_runs_and_its_rows_fit(made_up_gpu, monkeypatch, tmp_path):
    """On the CPU build each call is a whole computation, so a repeat is one call."""
    once = host_time.host_times
    monkeypatch.setattr(
        host_time, "host_times", lambda action, **how: once(action, **how | {"calls": 1})
    )
    options = Options(out=tmp_path, quick=True, repeats=2, commit="abc1234", say=len)
    outcome = record(host_time.EXPERIMENT, options)
    assert outcome.failures == ()
    rows = store.read(tmp_path / host_time.DATA_FILE)
    assert len(rows) == outcome.rows == 3 * len(host_time.calls())
    assert {(row["metric"], row["unit"], row["repeats"]) for row in rows} == {("host_time", "s", 2)}
    assert [row["kernel"] for row in rows[::3]] == [call.name for call in host_time.calls()]
