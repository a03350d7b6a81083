"""What is recorded of the order of all-reduces, on processes of this machine's CPU."""

import pytest
import torch

from labkernels.distributed import launch, on_cpus
from labkernels.experiments.accuracy import sums
from labkernels.experiments.experiment import Options
from labkernels.experiments.harness import Recording
from labkernels.experiments.performance import ranks
from labkernels.records import schema
from tests.distributed import on_ranks


@pytest.mark.parametrize("size", [2, 4])
def test_sums_are_those_in_the_order_that_a_probe_sees(size):
    found = list(ranks.together(on_cpus(sums.on_rank, size, sums.QUICK, 0, "cpu")))
    outputs = {row["dtype"]: row["outputs"] for row in found}
    assert outputs == {"fp16": 2048 * size, "bf16": 2048 * size, "fp32": 1024 * size}
    assert {(row["other"], row["unstable"], row["algorithm"]) for row in found} == {(0, 0, "")}


def test_a_row_has_what_nccl_was_told_and_what_it_said(monkeypatch):
    """The processes of a CPU stand in for NCCL, and write into its log what they were told."""

    def on_gpus(work, count, *given, timeout_s, **told):
        given, work = (*given[:-1], "cpu"), on_ranks.sums_with_a_log
        return launch._Launch("gloo", work, count, given, timeout_s, told).results(check=True)

    monkeypatch.setattr(sums, "on_gpus", on_gpus)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(ranks, "versions", lambda: {"nccl": "2", "torch": "2"})
    options = Options(quick=True, commit="abc1234", say=lambda line: None)
    cells = sums.EXPERIMENT.chosen(options)
    assert [cell.label for cell in cells] == ["as NCCL chooses", "Tree LL128 32 channels"]
    found = Recording(sums.EXPERIMENT, options, cells).measure(cells[1])
    assert not found.failures
    rows = [schema.validate(row, schema.TABLES["sums"]) for _, row in found.rows]
    said = ("Tree LL128 32", "TREE", "LL128", 32)
    how = ("asked", "algorithm", "protocol", "channels")
    assert [tuple(row[name] for name in how) for row in rows] == [said] * 3
