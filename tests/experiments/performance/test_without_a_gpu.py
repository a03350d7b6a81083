"""Experiments on speed make rows that fit their tables, here without a GPU."""

import pytest

from labkernels import hardware
from labkernels.budget import ranking
from labkernels.experiments.experiment import Cell, Options
from labkernels.experiments.harness import Recording
from labkernels.experiments.performance import (
    backward,
    host_time,
    kv_append,
    mla,
    numeric_policies,
    prefill,
)
from labkernels.experiments.performance.models import cascade
from labkernels.experiments.sweep import record
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.mla.workload import MlaDecode
from labkernels.kernels.operation import operations
from labkernels.measure.benchmark import benchmark
from labkernels.measure.implementation import implementations, on_and_off
from labkernels.measure.tuning import recorded as tuning_recorded
from labkernels.policy import NumericPolicy
from labkernels.records import recorded, schema, store
from tests import fake_gpu


def test_grids_have_the_sizes_of_the_papers_and_baselines_the_flops_of_their_cells():
    cells = [cell.workload for cell in backward.grid()]
    assert len(cells) == 24
    assert {sum(work.q_lens) for work in cells} == {16384}
    assert {work.q_heads * work.head_dim for work in cells} == {2048}
    for cell in prefill.grid():
        if cell.baseline is not None:
            assert cell.baseline.flops == pytest.approx(cell.workload.flops, rel=0.005)


def test_each_tile_of_mla_is_measured_under_a_name_of_its_own(monkeypatch):
    """On a GPU with 100 KiB per SM only the last tile fits; an H200 takes the first by default."""
    fake_gpu.install(monkeypatch)
    work = MlaDecode((96, 0, 256), 17, q_len=2, page_size=16)
    tiled = list(mla.tiled(implementations("mla", on_and_off)["mla_mma"]))
    result = benchmark(
        operations()["mla"], work, tiled, repeats=2, seed=0, graph=True, device="cpu"
    )
    found = {(row["kernel"], row["tile"]) for row in mla.TIMED.rows_of(work, result)}
    tiles = ("64x64x8x2x1", "64x32x8x2x1", "64x16x8x1x1")
    assert found == {(f"mla_mma {tile}", tile) for tile in tiles}


def test_a_cascade_is_right_and_timed_beside_decodes_of_the_same_requests(monkeypatch):
    fake_gpu.install(monkeypatch)
    (cell,) = cascade.grid(quick=True)
    chosen = list(cascade.chosen(cell, {}))
    how = {"repeats": 2, "seed": 0, "graph": True, "device": "cpu"}
    result = benchmark(cascade.TIMED.operation, cell.workload, chosen, **how)
    assert result.failures == []
    table = result.inputs.cache.page_table
    assert (table[:, :4] == table[0, :4]).all()
    assert len(table[:, 4:].unique()) == 4 * cascade.OWN // 16
    rows = cascade.TIMED.rows_of(cell.workload, result)
    found = {row["kernel"] for row in rows if row["metric"] == "time_graph"}
    assert {"cascade_decode", "decode_mma_n8"} <= found


APPENDED = kv_append.shape(3, 5, 20, 2, 64, page_size=4)


def test_rows_fit_the_table_and_count_each_byte_twice(monkeypatch):
    fake_gpu.install(monkeypatch)
    chosen = [implementations("append")[name] for name in ("append", "torch_index_copy")]
    how = {"repeats": 3, "seed": 0, "graph": True, "device": "cpu"}
    result = benchmark(
        operations()["append"], APPENDED, chosen, beside=kv_append.plain_copies, **how
    )
    rows = kv_append.rows_of(APPENDED, result)
    known = {field.name for field in schema.MEASUREMENTS.fields}
    assert all(set(row) <= known for row in rows)
    rates = {r["kernel"]: r["value"] for r in rows if r["metric"] == "bandwidth"}
    moved_bytes = 2 * (result.inputs.k_new.nbytes + result.inputs.v_new.nbytes)
    assert set(rates) == {"append", "torch_index_copy", "torch_copy"}
    assert rates["torch_index_copy"] == rates["torch_copy"] == moved_bytes / fake_gpu.GRAPH_S


PROVENANCE = dict.fromkeys((field.name for field in schema.PROVENANCE), 1) | {
    "experiment": "numeric_policies",
    **dict.fromkeys(("commit", "gpu", "driver", "cuda", "torch", "triton"), "none"),
    "dirty": False,
    "started_utc": "2026-12-01T09:30:00Z",
}
SMALL = Decode.uniform(2, 200, q_heads=4, kv_heads=1, head_dim=64, dtype="bf16")


def test_a_cell_gives_times_and_errors_of_every_way(monkeypatch, tmp_path):
    fake_gpu.install(monkeypatch)
    named = {way.policy.label: way for way in numeric_policies.ways() if "mma" in way.kernel}
    few = [named[policy.label] for policy in (NumericPolicy(), NumericPolicy(p="input_x2"))]
    monkeypatch.setattr(numeric_policies, "ways", lambda: few)
    options = Options(out=tmp_path, repeats=5, commit="abc1234")
    recording = Recording(numeric_policies.EXPERIMENT, options, [])
    found = list(numeric_policies.rows(Cell(SMALL.label, SMALL), recording))
    assert recording.failures == []
    rows = [schema.validate(row | PROVENANCE) for _, row in found]
    found = {(r["policy"], r["metric"], r["statistic"]): r["value"] for r in rows}
    for way in few:
        assert found[way.policy.label, "time_graph", "median"] == fake_gpu.GRAPH_S
    wide = {way.policy.p: way.policy.label.replace("out=input", "out=fp32") for way in few}
    for mean in numeric_policies.V_MEANS:
        metric = numeric_policies.metric_of("error", mean)
        assert found[wide["input"], metric, "rmse"] > 20 * found[wide["input_x2"], metric, "rmse"]


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
