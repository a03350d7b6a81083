"""The prefill experiment on the CPU build: what is measured is checked, and its rows fit."""

from dataclasses import replace

import pytest

from labkernels.experiments import Options, prefill
from labkernels.experiments import _prefill_cell as prefill_cell
from labkernels.experiments._prefill_grid import Cell, grid
from labkernels.measure.prefill_cases import prefill_case
from labkernels.measure.prefill_judge import PrefillJudge
from labkernels.measure.timing import Quartiles
from labkernels.records import schema
from labkernels.workload import Prefill

WORKLOADS = {
    "ragged": Prefill((96, 256), (96, 256), 2, 2, 64, causal=True),
    "paged": Prefill((96, 256), (96, 256), 4, 2, 64, page_size=16),
    "two widths": Prefill((64, 48), (64, 48), 2, 1, 192, causal=True, head_dim_v=128),
}


def ready(workload, kernel="prefill_mma"):
    case, result = prefill_case(workload, seed=0, device="cpu"), prefill_cell.CellResult()
    item = prefill_cell._prepare(prefill_cell.contenders({})[kernel], case, result)
    prefill_cell.spoil(item)
    item.run()
    judge = PrefillJudge(case)
    return item, lambda: judge(item.out(), item.lse2, item.contender.chain)


def test_a_twin_has_the_flops_of_its_cell():
    for cell in grid():
        if cell.twin is not None:
            assert cell.twin.flops == pytest.approx(cell.workload.flops, rel=0.005)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_right_output_passes_and_its_rows_fit(name):
    item, judge = ready(WORKLOADS[name])
    errors = judge()
    assert errors.passed
    times = Quartiles(1e-3, 1e-3, 1e-3, 5)
    result = prefill_cell.CellResult(measured=[prefill_cell.Measured(item, times, errors)])
    result.words = [(replace(item.contender, name="another"), "refused", "it says so")]
    rows = prefill.rows_of(Cell(WORKLOADS[name], "a test"), result)
    known = {field.name for field in schema.PREFILL_MEASUREMENTS.fields}
    assert all(set(row) <= known for row in rows)
    rate = next(row for row in rows if row["metric"] == "rate")
    assert rate["value"] == pytest.approx(WORKLOADS[name].flops / 1e-3)


@pytest.mark.parametrize("name", WORKLOADS)
def test_another_rows_output_and_an_unwritten_row_do_not_pass(name):
    item, judge = ready(WORKLOADS[name])
    out = item.out()
    out[-1, 0] = out[0, 0]
    assert not judge().passed
    item.run()
    out[5] = float("nan")
    assert not judge().passed


def test_a_peer_that_takes_dense_tensors_refuses_pages():
    case, result = prefill_case(WORKLOADS["paged"], seed=0, device="cpu"), prefill_cell.CellResult()
    assert prefill_cell._prepare(prefill_cell.contenders({})["torch_fa2"], case, result) is None
    assert [(metric, why) for _, metric, why in result.words] == [
        ("refused", "SDPA takes dense tensors, not pages")
    ]


def test_only_takes_words_between_bars():
    labels = [prefill.label_of(cell) for cell in grid()]

    def picked(words):
        return [label for label in labels if Options(only=words).picks(label)]

    assert picked("") == labels
    wanted = [label for label in labels if "page 16" in label or "skewed" in label]
    assert picked("page 16|skewed") == wanted
    assert 0 < len(picked("page 16")) < len(wanted) < len(labels)
