"""A table that is to be Parquet is one, and rows are added to it whole or not at all."""

import errno
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from labkernels.records import datapackage, parquet, schema, store
from tests import forked

TABLE = schema.MEASUREMENTS


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "performance" / "run.parquet"


def batch(row, *seeds):
    return [{**row, "seed": seed} for seed in seeds]


def seeds(path):
    return [row["seed"] for row in store.read(path)]


def test_rows_are_added_and_the_bytes_tell_nothing_of_the_way(path, row, tmp_path):
    other = tmp_path / "other.parquet"
    assert store.append(path, batch(row, 1, 2, 3)) == 3
    for seed in (1, 2, 3):
        assert store.append(other, batch(row, seed)) == 1
    assert other.read_bytes() == path.read_bytes()
    assert store.read(path) == batch(row, 1, 2, 3)
    later = {**row, "started_utc": "2026-12-02T00:00:00Z"}
    store.append(path, batch(later, 4))
    store.append(path, batch(row, 5), once=True)
    assert seeds(path) == [4, 5]
    store.replace(path, batch(row, 6))
    assert seeds(path) == [6]
    assert names(path.parent) == [".lock", "run.parquet"]


def test_without_pyarrow_a_csv_file_stands_in_its_place(path, row, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pyarrow", None)
        store.append(path, batch(row, 1))
        store.append(path, batch(row, 2))
        assert names(path.parent) == [".lock", "run.csv"]
        assert seeds(path) == [1, 2]
    store.append(path, batch(row, 3))
    assert names(path.parent) == [".lock", "run.parquet"]
    assert seeds(path) == [1, 2, 3]
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for write in (store.append, store.replace):
        with pytest.raises(parquet.Missing):
            write(path, batch(row, 4))
    monkeypatch.undo()
    assert seeds(path) == [1, 2, 3]


@pytest.mark.parametrize(("owner", "call"), [(os, "fsync"), (Path, "replace")])
def test_a_writer_that_is_refused_or_killed_leaves_the_rows_before(
    path, row, monkeypatch, owner, call
):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    store.append(path, batch(row, 1))
    with monkeypatch.context() as patch:
        patch.setattr(owner, call, refuse)
        with pytest.raises(OSError, match="No space left"):
            store.append(path, batch(row, 2))
        assert names(path.parent) == [".lock", "run.parquet"]
        patch.setattr(owner, call, forked.killed)
        child = forked.start(lambda: store.append(path, batch(row, 2)))
        assert forked.end(child) == -signal.SIGKILL
    assert seeds(path) == [1]
    store.append(path, batch(row, 3))
    assert seeds(path) == [1, 3]
    assert names(path.parent) == [".lock", "run.parquet"]


def test_readers_and_writers_of_one_table_see_every_row_once(path, row):
    store.append(path, batch(row, 0))
    adding = [
        threading.Thread(target=store.append, args=(path, batch(row, seed))) for seed in range(1, 9)
    ]
    for thread in adding:
        thread.start()
    while any(thread.is_alive() for thread in adding):
        found = seeds(path)
        assert len(set(found)) == len(found) > 0
    assert sorted(seeds(path)) == [*range(9)]


def test_a_changed_file_is_neither_read_nor_added_to(path, row, tmp_path):
    store.append(path, batch(row, 1))
    datapackage.write(tmp_path)
    path.write_bytes(parquet.content(batch(row, 7), TABLE))
    for act in (store.read, lambda path: store.append(path, batch(row, 2))):
        with pytest.raises(ValueError, match=r"performance/run.parquet is not the file that"):
            act(path)


def test_rows_of_another_table_are_not_added(path, row):
    store.append(path, batch(row, 1))
    with pytest.raises(
        ValueError, match=r"run.parquet has columns .*; allowed: \('started_utc', 'commit', 'suite'"
    ):
        store.append(path, [], schema.TABLES["chaos"])
    assert seeds(path) == [1]
