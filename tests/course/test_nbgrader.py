"""nbgrader releases each assignment of the course, and scores four submissions of it."""

import sys
from pathlib import Path

import nbformat
import pytest

from labkernels.chapters import exercises

pytest.importorskip("nbgrader", reason="needs nbgrader: pip install -e '.[course]'")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "book"))
import answers
import course

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]  # of nbgrader's packages


@pytest.fixture(scope="module")
def classroom(tmp_path_factory):
    """Return the course's folder, and the nbgrader that has released its assignments."""
    folder = tmp_path_factory.mktemp("course")
    for name in exercises.names():
        path = folder / "source" / name / f"{name}.ipynb"
        path.parent.mkdir(parents=True)
        nbformat.write(course.assignment(exercises.get(name)), path)
    (folder / "nbgrader_config.py").write_text(course.CONFIG)
    return folder, course.release(folder)


def submissions(name):
    """Return student -> (text of the answer cell, None for the stub; share of the points)."""
    exercise = exercises.get(name)
    wrong, right = (
        f"answer = {answers.literal(text)}"
        for text in (exercise.mistakes[0].source, exercise.solution)
    )
    return {"stub": (None, 0), "wrong": (wrong, 0), "right": (right, 1), "empty": ("", 0)}


@pytest.mark.parametrize("name", exercises.names())
@pytest.mark.parametrize("student", ["stub", "wrong", "right", "empty"])
def test_a_submission_gets_its_score(classroom, name, student):
    folder, api = classroom
    source, share = submissions(name)[student]
    notebook = nbformat.read(folder / "release" / name / f"{name}.ipynb", 4)
    assert "SOLUTION" not in notebook.cells[1].source
    if source is not None:
        notebook.cells[1].source = source
    path = folder / "submitted" / student / name / f"{name}.ipynb"
    path.parent.mkdir(parents=True)
    nbformat.write(notebook, path)
    result = api.autograde(name, student)
    assert result["success"], result.get("log")
    with api.gradebook as gradebook:
        found = gradebook.find_submission(name, student)
        points = exercises.get(name).difficulty
        assert (found.score, found.max_score) == (share * points, points)
        assert not found.needs_manual_grade
