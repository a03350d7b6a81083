"""Chapters are timed one after another, and each says what it ran."""

import re
from pathlib import Path

import chapter_frame
import jupytext
import nbformat
import notebook_io
import pytest
import time_chapters

from labkernels.records import store
from tests.bench.logs import log_of, missing
from tests.repo.files import chapters, read


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


@pytest.mark.parametrize("path", chapters("Chapters"), ids=lambda path: path.stem)
def test_a_chapter_ran_all_that_a_chapter_runs(path):
    assert missing(log_of(nbformat.read(path.with_suffix(".ipynb"), as_version=4))) == []


def test_the_first_notebook_lists_the_chapters_in_order_with_their_times():
    text = read("notebooks/start_here.py")
    listed = re.findall(r"\]\((\w+)\.ipynb\) \| (\d+) \|", text)
    assert listed == [(each.file, str(each.read_minutes)) for each in chapter_frame.chapters()]


@pytest.mark.long
def test_an_edition_that_is_not_of_these_scripts_is_refused(tmp_path: Path):
    with pytest.raises(SystemExit, match="lacks these as they are now"):
        notebook_io.edition(tmp_path)
    for source in notebook_io.sources():
        nbformat.write(jupytext.read(source), tmp_path / f"{source.stem}.ipynb")
    assert set(notebook_io.edition(tmp_path)) == {path.stem for path in notebook_io.sources()}
