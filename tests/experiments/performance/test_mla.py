"""On the CPU build, the MLA experiment checks what it measures, and its rows fit."""

from dataclasses import replace

import pytest

from labkernels.experiments.performance import mla
from labkernels.experiments.rows import workload_columns
from labkernels.kernels.mla.operation import OPERATION
from labkernels.kernels.mla.workload import MlaDecode
from labkernels.measure.benchmark import benchmark
from labkernels.measure.implementation import implementations, on_and_off
from labkernels.measure.peers.peer import Refused
from labkernels.records import schema
from labkernels.records.scoreboard import load_targets
from tests import fake_gpu

WORKLOAD = MlaDecode((96, 0, 256), 17, q_len=2, page_size=16)


def refuse(inputs):
    raise Refused("it says so")


def test_rows_of_a_right_output_fit(monkeypatch):
    fake_gpu.install(monkeypatch)
    ours = implementations("mla", on_and_off)["mla_mma"]
    chosen = [ours, replace(ours, name="another", kernel="another", prepare=refuse)]
    result = benchmark(OPERATION, WORKLOAD, chosen, repeats=5, seed=0, graph=True, device="cpu")
    rows = mla.TIMED.rows_of(WORKLOAD, result)
    known = {field.name for field in schema.PREFILL_MEASUREMENTS.fields}
    assert all(set(row) <= known for row in rows)
    rate = next(row for row in rows if row["metric"] == "rate")
    assert rate["value"] == pytest.approx(WORKLOAD.flops / 1e-3)
    (word,) = [row for row in rows if row["metric"] == "refused"]
    assert (word["kernel"], word["note"]) == ("another", "it says so")


def test_every_target_is_a_workload_of_the_grid():
    columns = [workload_columns(cell.workload) for cell in mla.grid()]
    for target in load_targets():
        if target.experiment == mla.EXPERIMENT.name:
            wanted = {**target.workload, "dtype": target.dtypes[0]}
            assert any(wanted.items() <= cell.items() for cell in columns), target.id


def test_each_tile_of_64_rows_is_measured_under_a_name_of_its_own(monkeypatch):
    """On a GPU with 100 KiB per SM only the last tile fits; an H200 takes the first by default."""
    fake_gpu.install(monkeypatch)
    tiled = list(mla.tiled(implementations("mla", on_and_off)["mla_mma"]))
    result = benchmark(OPERATION, WORKLOAD, tiled, repeats=2, seed=0, graph=True, device="cpu")
    found = {(row["kernel"], row["tile"]) for row in mla.TIMED.rows_of(WORKLOAD, result)}
    tiles = ("64x64x8x2x1", "64x32x8x2x1", "64x16x8x1x1")
    assert found == {(f"mla_mma {tile}", tile) for tile in tiles}
