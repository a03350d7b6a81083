"""What ranks record of attention and of sums, on processes of this machine's CPU."""

import pytest
import torch

from labkernels import distributed
from labkernels.distributed import launch, on_cpus
from labkernels.experiments.experiment import Options
from labkernels.experiments.harness import Recording
from labkernels.experiments.performance import ranks
from labkernels.records import schema
from tests.distributed import on_ranks

GRID = [(2, of) for of in ranks.QUICK] + [(4, of) for of in ranks.QUICK if of.operation != "decode"]


@pytest.mark.parametrize(("size", "of"), GRID, ids=lambda x: getattr(x, "operation", None))
def test_rows_hold_the_bits_of_one_process(size, of):
    found = list(ranks.together(on_cpus(ranks.on_rank, size, of, 0, "cpu")))
    columns = set(schema.TABLES["ranks"].columns)
    assert all(set(row) <= columns for row in found)
    compared = [row for row in found if row["outputs"]]
    ring = ["ring", "ring again", "ring in a graph"]
    ways = {"decode": ["gather", "heads", "scatter"] * 2, "prefill": ring * 2, "backward": ring}
    ways["projection"] = ["all-reduce"] * 2
    assert [row["way"] for row in compared] == ways[of.operation]
    # parts in 16 bits are added in 16 bits
    exact = [row for row in compared if (row["way"], row["carry"]) != ("scatter", "input")]
    assert [row["other"] for row in exact] == [0] * len(exact)
    assert {row["unstable"] for row in compared} == {0}


def test_times_are_those_of_the_slowest_rank_and_outputs_are_added():
    row = {"way": "gather", "outputs": 3, "other": 1, "unstable": 0, "time": 2.0}
    (both,) = ranks.together([[row], [row | {"time": 3.0, "other": 0}]])
    assert both == row | {"outputs": 6, "other": 1, "time": 3.0}


@pytest.mark.parametrize("size", [2, 4])
def test_sums_are_those_in_the_order_that_a_probe_sees(size):
    found = list(ranks.together(on_cpus(ranks.sums, size, (4096,), 0, "cpu")))
    outputs = {row["dtype"]: row["outputs"] for row in found}
    assert outputs == {"fp16": 2048 * size, "bf16": 2048 * size, "fp32": 1024 * size}
    assert {(row["other"], row["unstable"], row["algorithm"]) for row in found} == {(0, 0, "")}


def test_a_sum_has_what_nccl_was_told_and_what_it_said(monkeypatch):
    """The processes of a CPU stand in for NCCL, and write into its log what they were told."""

    def on_gpus(work, count, *given, timeout_s, **told):
        given, work = (told, *given[:-1], "cpu"), on_ranks.sums_with_a_log
        return launch._on("gloo", work, count, given, check=True, timeout_s=timeout_s)

    monkeypatch.setattr(distributed, "on_gpus", on_gpus)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28))
    options = Options(quick=True, only="sum", commit="abc1234", say=lambda line: None)
    cells = ranks.EXPERIMENT.chosen(options)
    labels = ["sum, as NCCL chooses", "sum, Tree LL128 32 channels"]
    assert [cell.label for cell in cells] == labels
    recording = Recording(ranks.EXPERIMENT, options, cells)
    recording.origin["torch"] = torch.__version__
    found = recording.measure(cells[1])
    assert not found.failures
    columns = ("nccl", "asked", "algorithm", "protocol", "channels", "other")
    rows = [tuple(row[name] for name in columns) for _, row in found.rows]
    assert rows == [("2.28", "Tree LL128 32", "TREE", "LL128", 32, 0)] * 3
