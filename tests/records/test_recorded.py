import pytest

from labkernels.records import recorded

PLACE = {"gpu": "NVIDIA H200", "commit": "abc1234", "dirty": False}
WORKLOAD = {"batch": 57, "kv_len": 8192}


def timed(kernel, started, **changes):
    row = {"kernel": kernel, "metric": "time_graph", "statistic": "median", "value": 1.0}
    return row | WORKLOAD | PLACE | {"started_utc": started} | changes


WHOLE = [timed(kernel, "2026-12-01T09:30:00Z") for kernel in ("decode_fma", "decode_mma")]
LATER_PART = [timed("decode_fma", "2026-12-02T09:30:00Z")]
OTHER_SIZE = [timed("decode_mma", "2026-12-02T09:30:00Z", batch=1)]


def test_a_later_part_does_not_hide_a_whole_run():
    rows = WHOLE + LATER_PART + OTHER_SIZE
    assert recorded.newest_with(rows, ("decode_fma", "decode_mma"), WORKLOAD) == WHOLE
    assert recorded.newest_with(rows, ("decode_fma",), WORKLOAD) == LATER_PART + OTHER_SIZE


def test_a_missing_run_is_said():
    with pytest.raises(ValueError, match="no recorded run timed all of .'decode_mma'.*batch"):
        recorded.newest_with(LATER_PART, ("decode_mma",), WORKLOAD)


def test_origin_is_the_words_of_a_caption():
    assert recorded.origin(WHOLE) == "measured on NVIDIA H200, 2026-12-01, commit abc1234"
    changed = [row | {"dirty": True} for row in WHOLE]
    assert recorded.origin(changed).endswith("commit abc1234 with changes")


def test_two_runs_have_no_one_origin():
    with pytest.raises(ValueError, match="rows come from 2 runs, allowed: 1"):
        recorded.origin(WHOLE + LATER_PART)


def run_of(kernel, started, commit="abc1234", gpu="NVIDIA H200", dirty=False):
    return {"kernel": kernel, "tile": "", "started_utc": started, "commit": commit, "gpu": gpu,
            "dirty": dirty}  # fmt: skip


def test_each_kernel_has_its_own_newest_run():
    first, second = "2026-12-01T09:00:00Z", "2026-12-02T09:00:00Z"
    rows = [run_of("a", first), run_of("b", first), run_of("b", second, "def5678")]
    found = recorded.newest_of_each(rows, ("kernel", "tile"))
    assert found == [rows[0], rows[2]]
    assert recorded.origins(found) == (
        "measured on NVIDIA H200, 2026-12-01 and 2026-12-02, commits abc1234, def5678"
    )
    assert recorded.origins(rows[:1]) == "measured on NVIDIA H200, 2026-12-01, commit abc1234"


def test_one_caption_names_one_gpu():
    rows = [run_of("a", "2026-12-01T09:00:00Z"), run_of("a", "2026-12-01T09:00:00Z", gpu="B")]
    with pytest.raises(ValueError, match="allowed: one GPU"):
        recorded.origins(rows)
