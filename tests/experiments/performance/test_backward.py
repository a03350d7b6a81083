"""On the CPU build, the backward experiment checks what it measures, and its rows fit."""

from dataclasses import replace

import pytest

from labkernels.experiments.performance import backward
from labkernels.kernels.backward.operation import OPERATION
from labkernels.kernels.backward.workload import Backward
from labkernels.measure.benchmark import benchmark
from labkernels.measure.implementation import implementations
from labkernels.measure.peers.peer import Refused
from labkernels.records import schema
from tests import fake_gpu

WORKLOADS = {
    "causal": Backward((96, 0, 130), (96, 7, 130), 2, 2, 64, causal=True),
    "grouped": Backward((64, 33), (100, 20), 6, 2, 64),
}


def refuse(inputs):
    raise Refused("it says so")


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
@pytest.mark.parametrize("name", ["backward_mma", "backward_mma ordered"])
def test_rows_of_right_gradients_fit(monkeypatch, workload, name):
    fake_gpu.install(monkeypatch)
    ours = implementations("backward")[name]
    chosen = [ours, replace(ours, name="another", prepare=refuse)]
    result = benchmark(OPERATION, workload, chosen, repeats=5, seed=0, graph=False, device="cpu")
    assert [(reason.name, reason.metric) for reason in result.reasons] == [("another", "refused")]
    rows = backward.TIMED.rows_of(workload, result)
    known = {field.name for field in schema.PREFILL_MEASUREMENTS.fields}
    assert all(set(row) <= known for row in rows)
    assert {row["kernel"] for row in rows} == {name}
    rate = next(row for row in rows if row["metric"] == "rate")
    assert rate["value"] == pytest.approx(workload.flops / 1e-3)
    heads = [row for row in rows if row["metric"].startswith("dk_error, head")]
    assert len(heads) == workload.kv_heads
    assert all(0 < row["value"] < 0.1 for row in heads)


def test_the_grid_is_the_papers():
    cells = [cell.workload for cell in backward.grid()]
    assert len(cells) == 24
    assert {sum(work.q_lens) for work in cells} == {16384}
    assert {work.q_heads * work.head_dim for work in cells} == {2048}
