"""The MLA experiment on the CPU build: what is measured is checked, and its rows fit."""

from dataclasses import replace

import pytest

from labkernels.experiments import _mla_cell as mla_cell
from labkernels.experiments import _mla_rows, mla
from labkernels.experiments._prefill_cell import CellResult, Measured, spoil
from labkernels.measure.mla_cases import mla_case
from labkernels.measure.mla_judge import MlaJudge
from labkernels.measure.timing import Quartiles
from labkernels.records import schema
from labkernels.records.scoreboard import load_targets
from labkernels.workload import MlaDecode

WORKLOAD = MlaDecode((96, 0, 256), 17, q_len=2, page_size=16)


def ready(kernel="mla_mma"):
    case, result = mla_case(WORKLOAD, seed=0, device="cpu"), CellResult()
    item = mla_cell.prepare(mla_cell.contenders({})[kernel], case, result)
    spoil(item)
    item.run()
    judge = MlaJudge(case)
    return item, lambda: judge(item.out(), item.lse2, item.contender.chain)


def test_a_right_output_passes_and_its_rows_fit():
    item, judge = ready()
    errors = judge()
    assert errors.passed
    times = Quartiles(1e-3, 1e-3, 1e-3, 5)
    result = CellResult(measured=[Measured(item, times, errors)])
    result.words = [(replace(item.contender, name="another"), "refused", "it says so")]
    rows = _mla_rows.rows_of(mla.NAME, WORKLOAD, result)
    known = {field.name for field in schema.PREFILL_MEASUREMENTS.fields}
    assert all(set(row) <= known for row in rows)
    rate = next(row for row in rows if row["metric"] == "rate")
    assert rate["value"] == pytest.approx(WORKLOAD.flops / 1e-3)


def test_another_rows_output_and_an_unwritten_row_do_not_pass():
    item, judge = ready()
    out = item.out()
    out[-1, 0] = out[0, 0]
    assert not judge().passed
    item.run()
    out[1] = float("nan")
    assert not judge().passed


def test_every_target_is_a_workload_of_the_grid():
    columns = [_mla_rows.workload_columns(workload) for workload, _ in mla.grid()]
    for target in load_targets():
        if target.experiment == mla.NAME:
            wanted = {**target.workload, "dtype": target.dtypes[0]}
            assert any(wanted.items() <= cell.items() for cell in columns), target.id
