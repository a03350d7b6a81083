"""build.py runs this interpreter, shows the error of a cell, and keeps pages off the network."""

import itertools
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import build
import notebook_io
import pytest

from tests import forked
from tests.book import stand_in

SCRIPT = """\
# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %%
import sys
sys.executable

# %%
{last_cell}
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    for name in ("JUPYTER_PATH", "IPYTHONDIR", "PYTHONPATH"):
        monkeypatch.setenv(name, "")

    def execute(last_cell):
        source = tmp_path / "idea.py"
        source.write_text(SCRIPT.format(last_cell=last_cell))
        notebook_io.use_this_interpreter(tmp_path / "scratch")
        return notebook_io.execute(source)

    return execute


def test_cells_run_in_this_interpreter_with_labkernels(run):
    notebook = run("import labkernels")
    assert notebook.cells[0].outputs[0].data["text/plain"] == repr(sys.executable)


def test_a_failing_cell_stops_the_build_with_its_error(run):
    with pytest.raises(SystemExit, match=r"(?s)notebooks/idea\.py.*no such tile: 7"):
        run("raise ValueError('no such tile: 7')")


@pytest.mark.parametrize(
    ("name", "matters"),
    [
        ("labkernels/kernels/decode/mma/kernel.cuh", True),
        ("labkernels/hardware/gpus.toml", True),
        ("labkernels/records/tables/decode.json", True),
        ("book/page_figures.py", True),
        ("data/performance/decode_tensor_cores.parquet", True),
        ("labkernels/__pycache__/units.pyc", False),
        ("README.md", False),
    ],
)
def test_a_change_of_kernels_or_data_changes_the_digest(tmp_path, monkeypatch, name, matters):
    monkeypatch.setattr(notebook_io, "ROOT", tmp_path)
    monkeypatch.setattr(notebook_io.metadata, "distributions", list)  # which takes seconds
    before = notebook_io.input_digest()
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("changed")
    assert (notebook_io.input_digest() != before) == matters


NETWORK = [
    '<script src="https://cdn.example/x.js"></script>',
    "<script async src='//cdn.example/x.js'>",
    '<link rel="stylesheet" href="https://fonts.example/a.css">',
    '<img alt="a" src="http://pictures.example/a.png">',
    "@import 'https://fonts.example/b.css';",
]
LOCAL = '<script src="../_static/x.js"></script><a href="https://arxiv.org/abs/1805.02867">a</a>'


@pytest.mark.parametrize("text", [LOCAL, *NETWORK])
def test_what_a_page_loads_from_the_network_is_found(tmp_path, text):
    name = "b.css" if text.startswith("@import") else "page.html"
    (tmp_path / name).write_text(f"<p>before</p>\n{text}")
    (tmp_path / "a.css").write_text("@import 'basic.css'; body { background: url('a.png') }")
    assert bool(build.network_uses(tmp_path)) == (text != LOCAL)


@pytest.fixture
def book(tmp_path, monkeypatch):
    """Return the stand-in for Jupyter Book, in a repository with one chapter."""
    return stand_in.empty_book(tmp_path, monkeypatch).subprocess.run


def says(capsys):
    build.main()
    return capsys.readouterr().out


def test_a_book_is_built_once_and_again_when_a_page_was_lost(book, capsys):
    assert "Open" in says(capsys)
    assert says(capsys).count("Open") == 1
    assert book.runs == 1
    for damage in (
        lambda: (build.SITE / "notebooks" / "idea.html").unlink(),
        lambda: (build.SITE / "notebooks" / "idea.html").write_text("half"),
        lambda: (build.BUILD / "site.key").write_bytes(b"\xff"),
        lambda: build.shutil.rmtree(build.SITE),
    ):
        runs = book.runs
        damage()
        assert "Open" in says(capsys)
        assert book.runs == runs + 1
        assert (build.SITE / "notebooks" / "idea.html").read_text() == "# Intro\n"


def test_a_book_has_its_sitemap_its_changelog_and_notebooks_in_plain_markdown(book, capsys):
    (build.ROOT / "CHANGELOG.md").write_text("# Changelog\n")
    (build.ROOT / "notebooks" / "idea.py").write_text("# %%\n# {doc}`two_roads`")
    assert "Open" in says(capsys)
    text = (build.SITE / "sitemap.xml").read_text()
    assert "<loc>https://owner.github.io/name/latest/notebooks/idea.html</loc>" in text
    assert (build.STAGE / "book" / ".." / "CHANGELOG.md").read_text() == "# Changelog\n"
    notebook = (build.SITE / "_sources" / "notebooks" / "idea.ipynb").read_text()
    assert "(two_roads.ipynb)" in notebook
    assert "{doc}" not in notebook


def test_a_page_that_is_missing_stops_the_build_and_leaves_the_old_book(book, capsys):
    says(capsys)
    (build.ROOT / "book" / "intro.md").write_text("# Another\n")
    book.missing = ("notebooks/idea.html",)
    with pytest.raises(SystemExit, match=r"these pages are missing: notebooks/idea\.html"):
        build.main()
    assert "Open" not in capsys.readouterr().out
    assert (build.SITE / "index.html").read_text() == "# Intro\n"
    book.missing, book.fails = (), True
    with pytest.raises(SystemExit, match="a warning\nThe book was not built"):
        build.main()
    assert (build.SITE / "index.html").read_text() == "# Intro\n"


@pytest.mark.parametrize("n", [1, 2])  # the old pages go aside, and the new ones come
def test_a_build_that_ends_while_it_places_its_pages_is_made_again(book, capsys, monkeypatch, n):
    def at_the_nth(act, replace=build.Path.replace):
        calls = itertools.count(1)
        return lambda path, target: act() if next(calls) == n else replace(path, target)

    def refuse():
        raise OSError("read-only")

    says(capsys)
    (build.ROOT / "book" / "intro.md").write_text("# Another\n")
    with monkeypatch.context() as patch:
        patch.setattr(build.Path, "replace", at_the_nth(refuse))
        with pytest.raises(SystemExit, match="The book was not built: read-only"):
            build.main()
        assert (build.SITE / "index.html").read_text() == "# Intro\n"
        patch.setattr(build.Path, "replace", at_the_nth(forked.killed))
        assert forked.end(forked.start(build.main)) == -signal.SIGKILL
    assert "Open" in says(capsys)
    assert (build.SITE / "index.html").read_text() == "# Another\n"


def test_the_second_of_two_builds_at_once_finds_the_pages_of_the_first(book, monkeypatch, tmp_path):
    def slow(command, **how):
        time.sleep(0.5)
        with (tmp_path / "runs").open("a") as file:
            file.write("one, ")
        return book(command, **how)

    monkeypatch.setattr(build.subprocess, "run", slow)
    children = [forked.start(build.main) for _ in range(2)]
    assert [forked.end(child) for child in children] == [0, 0]
    assert (tmp_path / "runs").read_text() == "one, "
    assert (build.SITE / "notebooks" / "idea.html").read_text() == "# Intro\n"


def test_an_edition_keeps_what_was_executed_before_its_end(book, monkeypatch, tmp_path):
    (tmp_path / "notebooks" / "never.py").write_text("# %%\n")
    edition, execute = tmp_path / "edition", build.notebook_io.execute

    def until_never(source):
        if source.stem == "never":
            raise OSError("the machine was taken back")
        return execute(source)

    monkeypatch.setattr(build.notebook_io, "execute", until_never)
    monkeypatch.setattr(build.shutil, "which", lambda program: program)  # as on a GPU machine
    monkeypatch.setattr(sys, "argv", ["build.py", "--to", str(edition)])
    with pytest.raises(SystemExit, match="taken back"):
        build.main()
    assert [path.name for path in edition.iterdir()] == ["idea.ipynb"]


@pytest.mark.parametrize("code", [0, 1, 5], ids=["alike", "differs", "no_cells"])
def test_chapters_are_replayed_in_nbval_from_the_run_of_the_book(book, monkeypatch, code):
    given = []

    def pytest_run(command, **_):
        given.extend(command)
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(build.subprocess, "run", pytest_run)
    monkeypatch.setattr(sys, "argv", ["build.py", "--nbval"])
    with pytest.raises(SystemExit, match="other outputs") if code else nullcontext():
        build.main()
    assert given[-1] == str(build.ROOT / "notebooks" / "idea.ipynb")
    assert (Path(given[given.index("--executed") + 1]) / "idea.ipynb").is_file()
    assert not build.SITE.exists()
