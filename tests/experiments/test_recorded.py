"""The newest committed run of the decode experiment shows what it must."""

import pytest

from labkernels import hardware
from labkernels.experiments.performance import decode_tensor_cores
from labkernels.kernels.registry import discover
from labkernels.records import scoreboard, store

PATH = store.DATA_DIR / decode_tensor_cores.DATA_FILE
CASE = ("kernel", "tensor_cores", "batch", "kv_len", "q_heads", "head_dim", "page_size", "dtype")


@pytest.fixture(scope="module")
def values():
    """Return {case: {(metric, statistic): value}} of the newest run."""
    if not PATH.exists():
        pytest.skip(f"{PATH.name} is not recorded yet")
    found = {}
    for row in store.newest(store.read(PATH)):
        key = tuple(row[name] for name in CASE)
        found.setdefault(key, {})[row["metric"], row["statistic"]] = row["value"]
    return found


def test_occupancy_is_what_the_driver_reports(values):
    known = [item for item in values.values() if ("blocks_per_sm", "exact") in item]
    assert known
    for item in known:
        assert item["blocks_per_sm", "exact"] == item["blocks_per_sm_predicted", "exact"]


def test_no_kernel_reads_faster_than_the_memory_can_deliver(values):
    """A decode reads nearly all that it moves, and reading alone is faster than copying."""
    vendor = hardware.gpu("h200").dram_bytes_per_s
    rates = {key[0]: item["bandwidth", "median"] for key, item in values.items() if not key[2]}
    assert rates["copy"] < rates["read"] < vendor
    for item in timed(values):
        rate, percent = item["bandwidth", "median"], item["copy_ceiling_share", "median"]
        assert rate < vendor
        assert percent == pytest.approx(100 * rate / rates["copy"])


def test_no_kernel_spills(values):
    of_each = {
        name: [item for key, item in values.items() if key[0] == name]
        for name, spec in discover().items()
        if (spec.operation, spec.language) == ("decode", "cuda")
    }
    assert sum(map(len, of_each.values())) > 0
    for name, items in of_each.items():
        assert all(item["local_bytes", "exact"] == 0 for item in items), name


def timed(values):
    """Return the cases that have times, of which there must be some."""
    found = [item for item in values.values() if ("time_graph", "median") in item]
    assert found
    return found


def test_every_time_belongs_to_an_output_that_passed(values):
    for item in timed(values):
        assert item["bound_ratio", "max"] <= 1
        assert ("error", "rmse") in item


def test_every_target_of_a_recorded_experiment_has_been_measured():
    scores = [s for s in scoreboard.scoreboard() if store.path_of(s.target.experiment).exists()]
    missing = [s for s in scores if s.status == scoreboard.NOT_MEASURED]
    assert [s.target.id for s in missing] == []
