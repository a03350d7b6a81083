import subprocess
from datetime import datetime, timedelta, timezone

import pytest

from labkernels.records import provenance, schema

DEVICE = {
    "gpu": "NVIDIA H200",
    "driver": "580",
    "cuda": "13.0",
    "torch": "2.11.0",
    "triton": "",
    "sm_clock_mhz": 1980.0,
    "power_w": 500.0,
}


def test_a_given_commit_stands_in_for_git(tmp_path):
    moment = datetime(2026, 12, 1, 10, 30, tzinfo=timezone(timedelta(hours=1)))
    facts = provenance.collect(
        DEVICE, seed=3, repeats=50, commit="abc1234-dirty", started=moment, root=tmp_path
    )
    assert tuple(facts) == tuple(field.name for field in schema.PROVENANCE)
    assert (facts["commit"], facts["dirty"]) == ("abc1234", True)
    assert facts["started_utc"] == "2026-12-01T09:30:00Z"


def test_without_git_and_commit_it_is_refused(tmp_path):
    with pytest.raises(ValueError, match="commit is unknown.*--commit HASH"):
        provenance.collect(DEVICE, seed=0, repeats=1, root=tmp_path)


def test_a_missing_or_unknown_fact_is_named(tmp_path):
    missing = {name: value for name, value in DEVICE.items() if name != "driver"}
    with pytest.raises(ValueError, match="driver is missing"):
        provenance.collect(missing, seed=0, repeats=1, commit="a", root=tmp_path)
    with pytest.raises(ValueError, match="device has 'mood'"):
        provenance.collect({**DEVICE, "mood": 1}, seed=0, repeats=1, commit="a", root=tmp_path)


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
