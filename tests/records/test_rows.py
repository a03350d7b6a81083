"""Rows are checked against their schema, know where they come from, and are chosen by run."""

import math
import subprocess
from datetime import datetime, timedelta, timezone

import pytest

from labkernels.records import provenance, recorded, schema


def test_a_good_row_comes_back_typed_and_in_column_order(row):
    text = {name: str(value) for name, value in reversed(row.items())}
    checked = schema.validate(text)
    assert tuple(checked) == schema.COLUMNS
    assert checked["batch"] == 57
    assert checked["value"] == pytest.approx(4.39e-4)
    assert checked["dirty"] is False


@pytest.mark.parametrize(
    ("column", "value", "allowed"),
    [
        ("value", math.nan, "a finite number"),
        ("value", math.inf, "a finite number"),
        ("value", "", "missing"),
        ("value", None, "missing"),
        ("value", "fast", "a finite number"),
        ("value", True, "a finite number"),
        ("batch", 1.5, "a whole number"),
        ("batch", "nan", "a finite integer"),
        ("tensor_cores", "maybe", "on, off"),
        ("dtype", "int8", "fp16, bf16, fp32"),
        ("dirty", "perhaps", "true, false"),
        ("commit", "", "missing"),
        ("started_utc", "yesterday", "YYYY-MM-DDTHH:MM:SSZ"),
        ("kernel", 7, "a text"),
        ("note", "two\nlines", "one line"),
    ],
)
def test_a_bad_cell_is_named_with_what_is_allowed(row, column, value, allowed):
    with pytest.raises(ValueError, match=rf"(?s){column}.*{allowed}"):
        schema.validate({**row, column: value})


def test_an_unknown_column_is_named(row):
    with pytest.raises(ValueError, match="'speed' is not in table measurements"):
        schema.validate({**row, "speed": 1})


def test_a_table_is_known_by_its_columns():
    for table in schema.TABLES.values():
        assert schema.table_of(table.columns) is table
    with pytest.raises(ValueError, match="belong to no table"):
        schema.table_of(("a", "b"))


def test_a_given_commit_stands_in_for_git(tmp_path):
    assert provenance.source_state("abc1234-dirty", root=tmp_path) == ("abc1234", True)
    assert provenance.source_state("abc1234", root=tmp_path) == ("abc1234", False)
    assert provenance.source_state(root=tmp_path) == ("unknown", False)
    moment = datetime(2026, 12, 1, 10, 30, tzinfo=timezone(timedelta(hours=1)))
    assert provenance.utc_text(moment) == "2026-12-01T09:30:00Z"


def test_git_tells_the_commit_and_changes_outside_data(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
        subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True
        )

    git("init")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "run.csv").write_text("a\n")
    (tmp_path / "source.py").write_text("x = 1\n")
    git("add", ".")
    git("commit", "-m", "first")
    commit, dirty = provenance.source_state(root=tmp_path)
    assert len(commit) == 10
    assert not dirty
    (tmp_path / "data" / "run.csv").write_text("b\n")
    assert provenance.source_state(root=tmp_path) == (commit, False)
    (tmp_path / "source.py").write_text("x = 2\n")
    assert provenance.source_state(root=tmp_path) == (commit, True)


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


def test_a_missing_run_is_said_and_two_runs_have_no_one_origin():
    with pytest.raises(ValueError, match="no recorded run timed all of .'decode_mma'.*batch"):
        recorded.newest_with(LATER_PART, ("decode_mma",), WORKLOAD)
    assert recorded.origin(WHOLE) == "measured on NVIDIA H200, 2026-12-01, commit abc1234"
    changed = [row | {"dirty": True} for row in WHOLE]
    assert recorded.origin(changed).endswith("commit abc1234 with changes")
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
