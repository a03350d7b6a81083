"""Each executed chapter says what it ran: both operations, both languages, every figure."""

import re
from pathlib import Path

import chapter_frame
import jupytext
import nbformat
import notebook_io
import pytest
import what_ran
import yaml

from labkernels.bench.log import MIME, log_of
from tests.repo.files import ROOT, read

CHAPTERS_PART = "Chapters"


def chapters():
    parts = yaml.safe_load(read("book/_toc.yml"))["parts"]
    listed = [part["chapters"] for part in parts if part["caption"] == CHAPTERS_PART]
    return [ROOT / f"{entry['file']}.ipynb" for part in listed for entry in part]


@pytest.mark.parametrize("path", chapters(), ids=lambda path: path.stem)
def test_a_chapter_ran_all_that_a_chapter_runs(path):
    assert log_of(nbformat.read(path, as_version=4)).missing() == []


def without(notebook, **columns):
    """Return the notebook as if no kernel with these entries had run."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if told := output.get("data", {}).get(MIME):
                told["runs"] = [run for run in told["runs"] if not columns.items() <= run.items()]
    return notebook


def test_the_first_notebook_lists_the_chapters_in_order_with_their_times():
    text = read("notebooks/start_here.py")
    listed = re.findall(r"\]\((\w+)\.ipynb\) \| (\d+) \|", text)
    assert listed == [(each.file, str(each.read_minutes)) for each in chapter_frame.chapters()]


@pytest.mark.parametrize(
    ("columns", "lacks"),
    [
        ({"language": "triton"}, "decode, triton, tensor cores on"),
        ({"operation": "prefill"}, "prefill, cuda, tensor cores off"),
        ({"tensor_cores": "off", "language": "cuda"}, "decode, cuda, tensor cores off"),
    ],
    ids=["Triton", "prefill", "CUDA cores"],
)
def test_what_is_taken_out_is_missed(columns, lacks):
    notebook = nbformat.read(chapters()[0], as_version=4)
    assert lacks in log_of(without(notebook, **columns)).missing()


def test_the_table_has_a_row_for_each_operation_of_a_chapter():
    path = chapters()[0]
    table = what_ran.table({path.stem: path})
    lines = table.splitlines()
    assert len(lines) == 2 + len(log_of(nbformat.read(path, as_version=4)).operations)
    assert f"{{doc}}`/notebooks/{path.stem}`" in lines[2]
    assert what_ran.PLACE in (ROOT / what_ran.PAGE).read_text(encoding="utf-8")


def test_an_edition_that_is_not_of_these_scripts_is_refused(tmp_path: Path):
    with pytest.raises(SystemExit, match="lacks these as they are now"):
        notebook_io.edition(tmp_path)
    for source in notebook_io.sources():
        nbformat.write(jupytext.read(source), tmp_path / f"{source.stem}.ipynb")
    assert set(notebook_io.edition(tmp_path)) == {path.stem for path in notebook_io.sources()}
