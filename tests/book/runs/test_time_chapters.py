"""time_chapters.py runs chapters one after another, and adds a row for each."""

import notebook_io
import pytest
import time_chapters

from labkernels.records import store


@pytest.fixture
def ran(monkeypatch):
    """Make every chapter run in no time, and return the names of those that ran."""
    names = []
    monkeypatch.setattr(notebook_io, "use_this_interpreter", lambda *_, **__: None)
    monkeypatch.setattr(notebook_io, "execute", lambda path, for_pages: names.append(path.stem))
    return names


def test_each_chapter_gets_a_row_of_its_run(ran, tmp_path):
    time_chapters.time_chapters([], tmp_path, "abc1234567-dirty")
    rows = store.read(tmp_path / time_chapters.DATA_FILE, described=False)
    every = [path.stem for path in sorted(notebook_io.NOTEBOOKS.glob("[!_]*.py"))]
    assert ran == every == [row["chapter"] for row in rows]
    assert {(row["commit"], row["dirty"]) for row in rows} == {("abc1234567", True)}
    assert len({row["started_utc"] for row in rows}) == 1
    assert all(0 <= row["seconds"] < 60 and row["cores"] >= 1 and row["device"] for row in rows)


def test_a_chapter_that_fails_leaves_the_rows_before_it(ran, tmp_path, monkeypatch):
    def fails(path, for_pages):
        if path.stem == "two_roads":
            raise SystemExit("notebooks/two_roads.py: a cell failed.")

    monkeypatch.setattr(notebook_io, "execute", fails)
    with pytest.raises(SystemExit, match="two_roads"):
        time_chapters.time_chapters(["start_here", "two_roads"], tmp_path, "")
    (row,) = store.read(tmp_path / time_chapters.DATA_FILE, described=False)
    assert row["chapter"] == "start_here"


def test_an_unknown_chapter_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["time_chapters.py", "two_paths"])
    with pytest.raises(SystemExit):
        time_chapters.parse_arguments()
    assert "no chapter two_paths; the chapters are a_gpu" in capsys.readouterr().err
