"""The grids of prefill, MLA decode and the backward pass are those that their chapters promise."""

import pytest

from labkernels.experiments.performance import backward, mla, prefill
from labkernels.kernels.mla.operation import OPERATION
from labkernels.kernels.mla.workload import MlaDecode
from labkernels.measure.benchmark import benchmark
from labkernels.measure.implementation import implementations, on_and_off
from tests import fake_gpu


def test_the_backward_grid_is_the_papers():
    cells = [cell.workload for cell in backward.grid()]
    assert len(cells) == 24
    assert {sum(work.q_lens) for work in cells} == {16384}
    assert {work.q_heads * work.head_dim for work in cells} == {2048}


def test_a_baseline_of_prefill_has_the_flops_of_its_cell():
    for cell in prefill.grid():
        if cell.baseline is not None:
            assert cell.baseline.flops == pytest.approx(cell.workload.flops, rel=0.005)


def test_each_tile_of_mla_is_measured_under_a_name_of_its_own(monkeypatch):
    """On a GPU with 100 KiB per SM only the last tile fits; an H200 takes the first by default."""
    fake_gpu.install(monkeypatch)
    work = MlaDecode((96, 0, 256), 17, q_len=2, page_size=16)
    tiled = list(mla.tiled(implementations("mla", on_and_off)["mla_mma"]))
    result = benchmark(OPERATION, work, tiled, repeats=2, seed=0, graph=True, device="cpu")
    found = {(row["kernel"], row["tile"]) for row in mla.TIMED.rows_of(work, result)}
    tiles = ("64x64x8x2x1", "64x32x8x2x1", "64x16x8x1x1")
    assert found == {(f"mla_mma {tile}", tile) for tile in tiles}
