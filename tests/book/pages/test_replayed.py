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
    live = {"outputs": [stream("42 launches\n")], "metadata": {"tags": ["nbval-ignore-output"]}}
    cells = [
        new_code_cell("show()", outputs=shown, execution_count=1),
        new_markdown_cell("Words."),
        new_code_cell("", outputs=[], execution_count=2),
        new_code_cell("watch()", execution_count=3, **live),
    ]
    return new_notebook(cells=cells)


def of_first(*outputs):
    """Return a change of the first cell's outputs, of which None is the picture as it was."""

    def change(cells):
        picture = cells[0].outputs[1]
        cells[0].outputs = [picture if each is None else each for each in outputs]

    return change


SAME = stream("rms 1.25\nin 3.1 ms\n")
# A change of the run, and nbval's answers for the code cells; no answer: it compares nothing.
CHANGES = {
    "another number": (of_first(stream("rms 1.26\nin 3.1 ms\n"), None), False),
    "no output": (of_first(), False),
    "a NaN": (of_first(stream("rms nan\nin 3.1 ms\n"), None), False),
    "a warning": (of_first(SAME, None, stream("DeprecationWarning: old\n", "stderr")), False),
    "another time": (of_first(stream("rms 1.25\nin 977.25 ms\n"), None), True),
    "other pixels": (
        of_first(SAME, new_output("display_data", data=PIXEL | {"image/png": "BBBB"})),
        True,
    ),
    "cut elsewhere": (of_first(stream("rms 1."), stream("25\nin 3.1 ms\n"), None), True),
    "ignored": (lambda cells: cells[3].outputs[0].update(text="43 launches\n"), True),
    "another source": (lambda cells: cells[0].update(source="shown()"), None),
    "one more": (lambda cells: cells.append(new_code_cell("more()", outputs=[stream("1")])), None),
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Return nbval's answer, PASSED, FAILED or ERROR, by notebook and number of the code cell."""
    folder = tmp_path_factory.mktemp("replayed")
    executed = folder / "executed"
    executed.mkdir()
    for i, (change, _) in enumerate(CHANGES.values()):
        committed = notebook()
        found = copy.deepcopy(committed)
        change(found.cells)
        found.metadata.language_info = {"name": "python", "version": "3"}
        nbformat.write(committed, folder / f"case{i:02}.ipynb")
        nbformat.write(found, executed / f"case{i:02}.ipynb")
    command = f"-m pytest -q -rA -p tests.replayed -p no:cacheprovider --rootdir {folder}".split()
    command += ["--executed", str(executed)]
    command += ["--nbval-sanitize-with", str(ROOT / "tests" / "nbval_sanitize.cfg")]
    path = os.pathsep.join([str(ROOT), str(ROOT / "book")])
    done = subprocess.run(
        [sys.executable, *command, *map(str, sorted(folder.glob("*.ipynb")))],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    pattern = r"^(PASSED|FAILED|ERROR) case(\d\d)\.ipynb::Cell (\d)"
    found = re.findall(pattern, done.stdout, re.MULTILINE)
    return {(int(case), int(number)): answer for answer, case, number in found}


@pytest.mark.long
@pytest.mark.parametrize("name", CHANGES)
def test_another_output_fails_its_cell_alone(answers, name):
    """What differs from run to run is no difference; other cells are another notebook."""
    found = [answers[list(CHANGES).index(name), number] for number in range(3)]
    alike = CHANGES[name][1]
    if alike is None:
        assert "PASSED" not in found
    else:
        assert found == ["PASSED" if alike else "FAILED", "PASSED", "PASSED"]
