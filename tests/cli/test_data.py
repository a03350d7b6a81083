"""`labkernels data show` and `export` print rows; `record --merge` merges those that are CSV."""

import csv
import io
import sys
from dataclasses import replace

import pytest

from labkernels import cli, experiments
from labkernels.experiments.experiment import Experiment
from labkernels.records import datapackage, schema, store

CHAOS = schema.TABLES["chaos"]
ORIGIN = {"suite": "records", "commit": "abc1234", "started_utc": "2026-12-01T09:30:00Z"}
COUNTS = {"injections": 9, "right": 7, "refused": 2, "wrong": 0}


def rows(*seeds):
    return [ORIGIN | COUNTS | {"seed": seed} for seed in seeds]


def shown(capsys, *arguments):
    assert cli.main(["data", "show", *arguments]) == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def test_a_table_is_shown_whole_or_in_part(capsys):
    every = store.read("mla")
    assert len(shown(capsys, "mla")) == len(every)
    where = ("--where", "kernel=mla_mma", "--where", "causal=false", "--where", "metric=time")
    asked = {"kernel": "mla_mma", "causal": False, "metric": "time"}
    found = shown(capsys, "mla", *where, "--newest")
    wanted = store.newest(store.select(every, asked))
    assert [row["value"] for row in found] == [repr(row["value"]) for row in wanted]
    assert len(shown(capsys, "chaos")) == len(store.read("chaos"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["show"], "a table is missing; allowed: its name, such as mla, or a file of rows"),
        (["show", "nope"], "table = nope, allowed: a file of rows, backward_bits, batch_bits"),
        (["show", "mla", "--where", "x=1"], "where = x=1, allowed: COLUMN=VALUE with one of"),
        (["show", "mla", "--where", "kv_len"], "where = kv_len, allowed: COLUMN=VALUE"),
        (["show", "mla", "--where", "kv_len=a"], "kv_len is 'a'; allowed: a finite integer"),
        (["show", "none.parquet"], "No such file"),
        (["export", "--to", "."], "to = . exists, allowed: a new folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_shown_is_told_in_one_line(capsys, arguments, told):
    assert cli.main(["data", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line


@pytest.mark.long
def test_the_export_has_every_cell(tmp_path):
    folder = tmp_path / "rows"
    assert cli.main(["data", "export", "--to", str(folder)]) == 0
    exported = sorted(folder.rglob("*.csv"))
    found = {path.with_suffix("").relative_to(folder) for path in exported}
    ends = ("csv", "parquet")
    lie = [path for end in ends for path in store.DATA_DIR.rglob(f"*.{end}")]
    assert found == {path.with_suffix("").relative_to(store.DATA_DIR) for path in lie}
    for path in exported:
        assert store.read(path) == store.read(path.stem)


@pytest.fixture
def toy(monkeypatch):
    """Make one experiment the only one: its table is a Parquet file."""
    tables = {"accuracy/toy.parquet": CHAOS, "accuracy/small.csv": CHAOS}
    toy = Experiment("toy", "A toy", tables, lambda options: [], lambda cell, recording: [])
    monkeypatch.setattr(experiments, "discover", lambda: {"toy": toy})
    return toy


def test_rows_that_wait_are_merged_and_described(toy, tmp_path, capsys, monkeypatch):
    path = tmp_path / "accuracy" / "toy.parquet"
    store.append(path, rows(1), CHAOS)
    store.append(path.with_name("small.csv"), rows(1), CHAOS)
    datapackage.write(tmp_path)
    merge = ["record", "--merge", "--out", str(tmp_path)]
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert cli.main(merge) == 0
    (line, count) = capsys.readouterr().out.splitlines()
    assert line.startswith("toy.csv could not be merged into toy.parquet: pyarrow, which reads")
    assert count == f"{tmp_path}: 0 tables merged"
    monkeypatch.undo()
    monkeypatch.setattr(experiments, "discover", lambda: {"toy": replace(toy)})
    assert cli.main(merge) == 0
    assert capsys.readouterr().out == f"{tmp_path}: 1 tables merged\n{path}\n"
    assert datapackage.differences(tmp_path) == []
    assert store.read(path) == [schema.validate(row, CHAOS) for row in rows(1)]
    store.append(path, rows(2), CHAOS)
    path.write_bytes(b"PAR1")
    assert cli.main(merge) == 1
    assert "toy.parquet is not the file that datapackage.json describes" in capsys.readouterr().out
