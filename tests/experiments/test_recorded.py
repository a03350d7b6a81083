"""What the committed rows of the decode experiment must show."""

import pytest

from labkernels.experiments import decode_tensor_cores
from labkernels.records import scoreboard, store

PATH = store.DATA_DIR / decode_tensor_cores.DATA_FILE
CASE = ("kernel", "tensor_cores", "batch", "kv_len", "q_heads", "head_dim", "page_size", "dtype")


@pytest.fixture(scope="module")
def values():
    """Return {(run, case): {(metric, statistic): value}} of every committed row."""
    if not PATH.exists():
        pytest.skip(f"{PATH.name} is not recorded yet")
    found = {}
    for row in store.read(PATH):
        key = (row["started_utc"], *(row[name] for name in CASE))
        found.setdefault(key, {})[row["metric"], row["statistic"]] = row["value"]
    return found


def test_occupancy_is_what_the_driver_reports(values):
    known = [item for item in values.values() if ("blocks_per_sm", "exact") in item]
    assert known
    for item in known:
        assert item["blocks_per_sm", "exact"] == item["blocks_per_sm_predicted", "exact"]


def test_no_kernel_spills(values):
    assert all(item.get(("local_bytes", "exact"), 0) == 0 for item in values.values())


def test_every_time_belongs_to_an_output_that_passed(values):
    for key, item in values.items():
        if ("time_graph", "median") in item and key[1] not in ("copy", "read"):
            assert item["bound_ratio", "max"] <= 1
            assert ("error", "rmse") in item


def test_every_target_of_issue_2_has_been_measured():
    if not PATH.exists():
        pytest.skip(f"{PATH.name} is not recorded yet")
    scores = [score for score in scoreboard.scoreboard() if score.target.issue == 2]
    assert [s.target.id for s in scores if s.status == scoreboard.NOT_MEASURED] == []
