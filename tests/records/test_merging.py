"""A Parquet table and the rows in CSV files beside it are one table, whatever interrupts."""

import subprocess
import sys
import threading

import pytest

from labkernels.records import datapackage, parquet, schema, store

TABLE = schema.MEASUREMENTS


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "performance" / "run.parquet"


def batch(row, *seeds):
    return [{**row, "seed": seed} for seed in seeds]


def seeds(path):
    return [row["seed"] for row in store.read(path)]


def test_rows_are_csv_until_they_are_merged(path, row):
    assert store.append(path, batch(row, 1)) == 1
    assert store.append(path, batch(row, 2)) == 1
    assert names(path.parent) == [".lock", "run.csv"]
    assert store.merge(path, TABLE)
    assert names(path.parent) == [".lock", "run.parquet"]
    merged = path.read_bytes()
    assert store.append(path, batch(row, 3, 4)) == 2
    assert names(path.parent) == [".lock", "run.journal.csv", "run.parquet"]
    assert path.read_bytes() == merged
    assert seeds(path) == [1, 2, 3, 4]
    assert store.merge(path, TABLE)
    assert names(path.parent) == [".lock", "run.parquet"]
    assert seeds(path) == [1, 2, 3, 4]
    assert not store.merge(path, TABLE)
    assert store.read(path) == batch(row, 1, 2, 3, 4)


def test_the_bytes_tell_nothing_of_the_way_and_a_table_may_begin_again(path, row, tmp_path):
    other = tmp_path / "other.parquet"
    store.append(path, batch(row, 1, 2, 3))
    store.merge(path, TABLE)
    for seed in (1, 2, 3):
        store.append(other, batch(row, seed))
        store.merge(other, TABLE)
    assert other.read_bytes() == path.read_bytes()
    store.replace(path, batch(row, 5))
    store.append(path, batch(row, 6))
    store.merge(path, TABLE)
    assert names(path.parent) == [".lock", "run.parquet"]
    assert seeds(path) == [5, 6]
    assert not store.merge(tmp_path / "none.parquet", TABLE)
    with pytest.raises(FileNotFoundError):
        store.read(tmp_path / "none.parquet")


KILLED = """
import os, signal, sys
from pathlib import Path
from labkernels.records import schema, store
count, passed = int(sys.argv[2]), 0
def before(code):
    def counted(*arguments, **options):
        global passed
        passed += 1
        if passed == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return code(*arguments, **options)
    return counted
os.fsync, Path.replace, Path.unlink = map(before, (os.fsync, Path.replace, Path.unlink))
store.merge(Path(sys.argv[1]), schema.MEASUREMENTS)
print(passed)
"""
STEPS = 6  # of each of two files a sync and a replacement, and two files that are removed


@pytest.mark.one_in(6)
@pytest.mark.parametrize("step", range(1, STEPS + 2))
def test_a_killed_merge_leaves_every_row_once(path, row, step):
    store.append(path, batch(row, 1, 2))
    store.merge(path, TABLE)
    store.append(path, batch(row, 3))
    command = [sys.executable, "-c", KILLED, str(path), str(step)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == ((-9, "") if step <= STEPS else (0, f"{STEPS}\n"))
    assert seeds(path) == [1, 2, 3]
    store.append(path, batch(row, 4))
    assert seeds(path) == [1, 2, 3, 4]
    store.merge(path, TABLE)
    assert seeds(path) == [1, 2, 3, 4]
    assert set(names(path.parent)) <= {".lock", "run.parquet", "run.parquet.part", "run.csv.part"}


def test_readers_and_writers_of_one_table_see_every_row_once(path, row):
    done, seen, wrong = threading.Event(), [0], []

    def merging():
        while not done.is_set():
            store.merge(path, TABLE)

    def reading():
        while not done.is_set():
            found = seeds(path)
            if found != [*range(len(found))] or len(found) < seen[-1]:
                wrong.append(found)
            seen.append(len(found))

    store.append(path, batch(row, 0))
    threads = [threading.Thread(target=work) for work in (merging, reading)]
    for thread in threads:
        thread.start()
    for seed in range(1, 40):
        store.append(path, batch(row, seed))
    done.set()
    for thread in threads:
        thread.join()
    assert (wrong, seeds(path)) == ([], [*range(40)])


def test_a_reader_that_a_merge_overtakes_reads_again(path, row, monkeypatch):
    """The merge stops when the Parquet file has the rows, and their journal still lies there."""
    store.append(path, batch(row, 1))
    store.merge(path, TABLE)
    store.append(path, batch(row, 2))
    read_bytes, overtaken = type(path).read_bytes, []

    def stop(*_, **options):
        raise OSError(5, "stopped")

    def read_later(file):
        if file == path and not overtaken:
            overtaken.append(True)
            with monkeypatch.context() as patch:
                patch.setattr(type(path), "unlink", stop)
                with pytest.raises(OSError, match="stopped"):
                    store.merge(path, TABLE)
        return read_bytes(file)

    monkeypatch.setattr(type(path), "read_bytes", read_later)
    assert seeds(path) == [1, 2]
    assert overtaken


def test_a_changed_file_is_neither_read_nor_merged(path, row, tmp_path):
    store.append(path, batch(row, 1))
    store.merge(path, TABLE)
    store.append(path, batch(row, 2))
    datapackage.write(tmp_path)
    assert seeds(path) == [1, 2]
    journal, right = path.with_name("run.journal.csv"), path.read_bytes()
    path.write_bytes(parquet.content(batch(row, 7), TABLE))
    with pytest.raises(ValueError, match=r"performance/run.parquet is not the file that"):
        store.merge(path, TABLE)
    assert names(path.parent) == [".lock", "run.journal.csv", "run.parquet"]
    path.write_bytes(right)
    journal.write_text(journal.read_text().replace("0.000439", "0.0000439"))
    with pytest.raises(ValueError, match=r"performance/run.journal.csv is not the file that"):
        store.read(path)


def test_rows_of_another_table_or_cut_rows_are_not_merged(path, row):
    store.append(path, batch(row, 1))
    store.merge(path, TABLE)
    journal = path.with_name("run.journal.csv")
    other = schema.TABLES["register_growth"]
    journal.write_text(",".join(other.columns) + "\n")
    told = r"run.journal.csv has columns .*; allowed: \('experiment'"
    for act in (store.read, lambda path: store.merge(path, TABLE)):
        with pytest.raises(ValueError, match=told):
            act(path)
    with pytest.raises(ValueError, match=told):
        store.append(path, batch(row, 2))
    journal.unlink()
    store.append(path, batch(row, 2))
    journal.write_bytes(journal.read_bytes()[:-3])
    for act in (store.read, lambda path: store.merge(path, TABLE)):
        with pytest.raises(ValueError, match=r"run.journal.csv, line 2: the file is cut"):
            act(path)
    assert names(path.parent) == [".lock", "run.journal.csv", "run.parquet"]
