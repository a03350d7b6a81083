"""The newest committed run of the decode experiment shows what it must."""

import pytest

from labkernels.experiments.performance import decode_tensor_cores
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


def test_no_rate_is_far_above_the_copy_ceiling(values):
    shares = [
        item["copy_ceiling_share", "median"]
        for item in values.values()
        if ("copy_ceiling_share", "median") in item
    ]
    assert shares
    assert max(shares) < 110


def test_no_kernel_spills(values):
    assert all(item.get(("local_bytes", "exact"), 0) == 0 for item in values.values())


def test_every_time_belongs_to_an_output_that_passed(values):
    for item in values.values():
        if ("time_graph", "median") in item:
            assert item["bound_ratio", "max"] <= 1
            assert ("error", "rmse") in item


def test_every_target_of_a_recorded_experiment_has_been_measured():
    scores = [s for s in scoreboard.scoreboard() if store.path_of(s.target.experiment).exists()]
    missing = [s for s in scores if s.status == scoreboard.NOT_MEASURED]
    assert [s.target.id for s in missing] == []
