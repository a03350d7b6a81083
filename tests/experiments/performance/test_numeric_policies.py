"""The experiment on policies compares the right ways; a small cell runs on the CPU build."""

from labkernels.experiments.experiment import Cell, Options
from labkernels.experiments.harness import Recording
from labkernels.experiments.performance import numeric_policies
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.registry import discover
from labkernels.policy import NumericPolicy
from labkernels.records import schema
from tests import fake_gpu

PROVENANCE = dict.fromkeys((field.name for field in schema.PROVENANCE), 1) | {
    "experiment": "numeric_policies",
    **dict.fromkeys(("commit", "gpu", "driver", "cuda", "torch", "triton"), "none"),
    "dirty": False,
    "started_utc": "2026-12-01T09:30:00Z",
}
SMALL = Decode.uniform(2, 200, q_heads=4, kv_heads=1, head_dim=64, dtype="bf16")


def test_one_switch_at_a_time_and_the_two_that_go_together():
    ways = numeric_policies.ways()
    assert {way.spec.name for way in ways} >= {"decode_fma", "decode_mma", "decode_mma_n8"}
    mine = [way.policy for way in ways if way.spec.name == "decode_mma"]
    assert mine[0] == discover()["decode_mma"].policies[0]
    assert {(p.p, p.denominator, p.exp2, p.accumulate) for p in mine} == {
        ("input", "unrounded", "mufu", "tensor_core"),
        ("input", "rounded", "mufu", "tensor_core"),
        ("input", "unrounded", "poly3", "tensor_core"),
        ("input", "unrounded", "poly5", "tensor_core"),
        ("input_x2", "unrounded", "mufu", "tensor_core"),
        ("input", "unrounded", "mufu", "promoted"),
        ("input_x2", "unrounded", "mufu", "promoted"),
    }
    assert {policy.out for policy in mine} == {"input"}


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
