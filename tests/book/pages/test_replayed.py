"""nbval, given a chapter's run in place of a kernel, names each cell whose output differs."""

import copy
import os
import re
import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests.repo.files import ROOT

PIXEL = {"image/png": "AAAA", "text/plain": "<Figure>"}


def stream(text, name="stdout"):
    return new_output("stream", name=name, text=text)


def notebook():
    """Return cells with a table and a picture, no code, and a live number that is not compared."""
    shown = [stream("rms 1.25\nin 3.1 ms\n"), new_output("display_data", data=dict(PIXEL))]
    ignored = {"tags": ["nbval-ignore-output"]}
    cells = [
        new_code_cell("show()", outputs=shown, execution_count=1),
        new_markdown_cell("Words."),
        new_code_cell("", outputs=[], execution_count=2),
        new_code_cell(
            "watch()", outputs=[stream("42 launches\n")], metadata=ignored, execution_count=3
        ),
    ]
    return new_notebook(cells=cells)


def other_number(cells):
    cells[0].outputs[0].text = "rms 1.26\nin 3.1 ms\n"


def no_number(cells):
    del cells[0].outputs[0]


def no_output(cells):
    cells[0].outputs = []


def a_nan(cells):
    cells[0].outputs[0].text = "rms nan\nin 3.1 ms\n"


def twice(cells):
    cells[0].outputs.append(copy.deepcopy(cells[0].outputs[1]))


def another_kind(cells):
    cells[0].outputs[1].data["text/html"] = "<b>Figure</b>"


def a_warning(cells):
    cells[0].outputs.append(stream("DeprecationWarning: old\n", "stderr"))


def an_error(cells):
    cells[0].outputs.append(new_output("error", ename="E", evalue="no", traceback=[]))


def other_time(cells):
    cells[0].outputs[0].text = "rms 1.25\nin 977.25 ms\n"


def other_pixels(cells):
    cells[0].outputs[1].data["image/png"] = "BBBB"


def cut_elsewhere(cells):
    cells[0].outputs[:1] = [stream("rms 1."), stream("25\nin 3.1 ms\n")]


def ignored(cells):
    cells[3].outputs[0].text = "43 launches\n"


def other_source(cells):
    cells[0].source = "shown()"


def one_more(cells):
    cells.append(new_code_cell("more()", outputs=[stream("1")]))


DIFFERENT = [
    *(other_number, no_number, no_output, a_nan, twice, another_kind, a_warning, an_error),
]
ALIKE = [other_time, other_pixels, cut_elsewhere, ignored]
OF_OTHER_CELLS = [other_source, one_more]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Return nbval's answer, PASSED, FAILED or ERROR, by notebook and number of the code cell."""
    folder = tmp_path_factory.mktemp("replayed")
    (folder / "executed").mkdir()
    for change in (*DIFFERENT, *ALIKE, *OF_OTHER_CELLS):
        committed = notebook()
        found = copy.deepcopy(committed)
        change(found.cells)
        found.metadata.language_info = {"name": "python", "version": "3"}
        nbformat.write(committed, folder / f"{change.__name__}.ipynb")
        nbformat.write(found, folder / "executed" / f"{change.__name__}.ipynb")
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "tests.replayed"]
    command += [
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(folder),
        "--executed",
        str(folder / "executed"),
    ]
    command += ["--nbval-sanitize-with", str(ROOT / "tests" / "nbval_sanitize.cfg")]
    path = os.pathsep.join([str(ROOT), str(ROOT / "book")])
    done = subprocess.run(
        [*command, *map(str, sorted(folder.glob("*.ipynb")))],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    found = re.findall(r"^(PASSED|FAILED|ERROR) (\w+)\.ipynb::Cell (\d)", done.stdout, re.MULTILINE)
    return {(name, int(number)): answer for answer, name, number in found}


def of(answers, change):
    return [answers[change.__name__, number] for number in range(3)]


@pytest.mark.parametrize("change", DIFFERENT)
def test_another_output_fails_its_cell_alone(answers, change):
    assert of(answers, change) == ["FAILED", "PASSED", "PASSED"]


@pytest.mark.parametrize("change", ALIKE)
def test_what_differs_from_run_to_run_is_no_difference(answers, change):
    assert of(answers, change) == ["PASSED"] * 3


@pytest.mark.parametrize("change", OF_OTHER_CELLS)
def test_other_cells_are_another_notebook(answers, change):
    assert "PASSED" not in of(answers, change)
