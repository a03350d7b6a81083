"""Stand-ins for Jupyter Book and for the chapters, in tests of build.py."""

import subprocess
import sys

import build

PAGES = ("index.html", "search.html", "book/intro.html", "notebooks/idea.html")


class JupyterBook:
    """Writes every page but those in `missing`; each page holds the source of the first page."""

    def __init__(self):
        self.missing, self.runs, self.fails = (), 0, False

    def __call__(self, command, **_):
        self.runs += 1
        pages = build.Path(command[command.index("--path-output") + 1]) / "_build" / "html"
        text = (build.STAGE / "book" / "intro.md").read_text()
        staged = build.STAGE / "notebooks" / "idea.ipynb"
        download = pages / "_sources" / "notebooks" / "idea.ipynb"
        download.parent.mkdir(parents=True, exist_ok=True)
        download.write_text(staged.read_text())
        for name in PAGES:
            if name not in self.missing:
                (pages / name).parent.mkdir(parents=True, exist_ok=True)
                (pages / name).write_text(text)
        return subprocess.CompletedProcess(command, int(self.fails), "out", "a warning")


def empty_book(folder, monkeypatch):
    """Return build.py, set to build a repository with one chapter in an empty folder."""
    for name, below in (("ROOT", ""), ("BUILD", "_build"), ("SITE", "_site")):
        monkeypatch.setattr(build, name, folder / below)
    monkeypatch.setattr(build, "EXECUTED", build.BUILD / "executed")
    monkeypatch.setattr(build, "STAGE", build.BUILD / "book_source")
    monkeypatch.setattr(build.page_widgets, "write", lambda folder: "no widgets")
    monkeypatch.setattr(build.notebook_io, "ROOT", folder)
    monkeypatch.setattr(build.notebook_io, "NOTEBOOKS", folder / "notebooks")
    monkeypatch.setattr(build.notebook_io, "execute", executed)
    monkeypatch.setattr(build.notebook_io, "use_this_interpreter", lambda scratch: None)
    # A digest of all that is installed takes seconds, and is not what these tests are about.
    monkeypatch.setattr(build.notebook_io.metadata, "distributions", list)
    monkeypatch.setattr(sys, "argv", ["build.py"])
    for name, text in {
        "book/_config.yml": "repository: {url: h/owner/name, branch: b}\nsphinx: {config: {}}\n",
        "book/_toc.yml": "root: book/intro\nparts: [{chapters: [{file: notebooks/idea}]}]\n",
        "book/intro.md": "# Intro\n",
        "book/evidence.md": "# Runs\n",
        "notebooks/idea.py": "# %%\n",
        "notebooks/idea.ipynb": "{}",
        "labkernels/units.py": "",
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setattr(build.subprocess, "run", JupyterBook())
    return build


def executed(source):
    """Return the notebook of a chapter."""
    cell = build.nbformat.v4.new_markdown_cell(source.read_text(), id="cell")
    metadata = {"language_info": {"name": "python"}}
    return build.nbformat.v4.new_notebook(cells=[cell], metadata=metadata)
