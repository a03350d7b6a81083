"""`labkernels data show` prints the rows of a table, and `export` writes all tables."""

import csv
import io

import pytest

from labkernels import cli
from labkernels.records import store


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
