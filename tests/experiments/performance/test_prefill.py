"""On the CPU build, the prefill experiment checks what it measures, and its rows fit."""

import pytest

from labkernels.experiments.performance import prefill
from labkernels.kernels.prefill.operation import OPERATION
from labkernels.kernels.prefill.workload import Prefill
from labkernels.measure.benchmark import benchmark
from labkernels.measure.implementation import implementations
from labkernels.records import schema
from tests import fake_gpu

WORKLOADS = {
    "ragged": Prefill((96, 256), (96, 256), 2, 2, 64, causal=True),
    "paged": Prefill((96, 256), (96, 256), 4, 2, 64, page_size=16),
    "two widths": Prefill((64, 48), (64, 48), 2, 1, 192, causal=True, head_dim_v=128),
}


def test_a_baseline_has_the_flops_of_its_cell():
    for cell in prefill.grid():
        if cell.baseline is not None:
            assert cell.baseline.flops == pytest.approx(cell.workload.flops, rel=0.005)


@pytest.mark.parametrize("name", WORKLOADS)
def test_rows_of_a_right_output_fit(monkeypatch, name):
    fake_gpu.install(monkeypatch)
    work, found = WORKLOADS[name], implementations("prefill")
    chosen = [found["prefill_mma"], found["torch_fa2"]]
    how = {"repeats": 5, "seed": 0, "graph": False, "device": "cpu"}
    result = benchmark(OPERATION, work, chosen, baseline=("again", work), **how)
    rows = prefill.TIMED.rows_of(work, result)
    known = {field.name for field in schema.PREFILL_MEASUREMENTS.fields}
    assert all(set(row) <= known for row in rows)
    rates = {row["kernel"]: row["value"] for row in rows if row["metric"] == "rate"}
    assert rates["prefill_mma"] == pytest.approx(work.flops / 1e-3)
    assert set(rates) == {"prefill_mma", "prefill_mma again"}
    assert {row["kernel"] for row in rows if row["metric"] == "refused"} == {"torch_fa2"}
