"""nbgrader releases the course, and scores submissions of assignments, chapters and a quiz."""

import nbformat
import pytest

from labkernels.chapters import exercises

pytest.importorskip("nbgrader", reason="needs nbgrader: pip install -e '.[course]'")
import answers
import course
from solutions import solution

# A primer, in which two of three exercises are assignments and so have no check, and a case.
CHAPTERS = ("fragments_and_rounding", "the_ladder")
QUIZ = "quiz_3"

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]  # of nbgrader's packages


@pytest.fixture(scope="module")
def classroom(tmp_path_factory):
    """Return the course's folder, and the nbgrader that has released its assignments."""
    folder = tmp_path_factory.mktemp("course")
    for name, notebook in course.notebooks():
        if name in {*CHAPTERS, QUIZ, *exercises.names()}:
            path = folder / "source" / name / f"{name}.ipynb"
            path.parent.mkdir(parents=True)
            nbformat.write(notebook, path)
    (folder / "nbgrader_config.py").write_text(course.CONFIG)
    return folder, course.release(folder)


def submissions(name):
    """Return student -> (text of the answer cell, None for the stub; share of the points)."""
    exercise = exercises.get(name)
    wrong, right = (
        f"answer = {answers.literal(text)}"
        for text in (exercise.mistakes[0].source, solution(name))
    )
    return {"stub": (None, 0), "wrong": (wrong, 0), "right": (right, 1), "empty": ("", 0)}


@pytest.mark.parametrize("name", exercises.names())
@pytest.mark.parametrize("student", ["stub", "wrong", "right", "empty"])
def test_a_submission_gets_its_score(classroom, name, student):
    folder, _ = classroom
    source, share = submissions(name)[student]
    notebook = read(folder / "release" / name, name)
    assert "SOLUTION" not in notebook.cells[1].source
    if source is not None:
        notebook.cells[1].source = source
    points = exercises.get(name).difficulty
    assert score(classroom, name, student, notebook) == (share * points, points, False)


@pytest.mark.parametrize(
    "source",
    [
        "exercises.check = lambda *_: type('R', (), {'passed': True})\nanswer = 1",
        "answer = exercises.get('register_ledger').hint(3)",
    ],
)
@pytest.mark.parametrize("place", ["answer", "cell of its own"])
def test_a_submission_that_changes_the_check_scores_nothing(classroom, source, place):
    name = "register_ledger"
    notebook = read(classroom[0] / "release" / name, name)
    if place == "answer":
        notebook.cells[1].source = source
    else:
        notebook.cells.insert(1, nbformat.v4.new_code_cell(source))
    student = f"sly-{len(source)}-{len(place)}"
    assert score(classroom, name, student, notebook) == (0, 2, False)


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_solved_chapter_scores_what_the_machine_gives_and_waits_for_the_reasons(classroom, name):
    """The machine gives a point per check, and the teacher a point per exercise for the reason.

    The chapter as it was released scores nothing.
    """
    notebook = read(classroom[0] / "release" / name, name)
    assert "SOLUTION" not in str(notebook.cells)
    assert "Half a point" not in str(notebook.cells)
    assert score(classroom, name, "stub", notebook) == (0, len(points_of(notebook)), False)
    solved = read(classroom[0] / "source" / name, name)
    checks = [cell for cell in points_of(solved) if not cell.metadata["nbgrader"]["solution"]]
    points = len(points_of(solved))
    assert 0 < len(checks) < points
    assert score(classroom, name, "right", solved) == (len(checks), points, True)


def test_a_quiz_is_graded_by_tests_that_students_do_not_have(classroom):
    notebook = read(classroom[0] / "release" / QUIZ, QUIZ)
    assert "HIDDEN" not in str(notebook.cells)
    assert "abs(float(answer)" not in str(notebook.cells)
    assert score(classroom, QUIZ, "stub", notebook) == (0, 10, False)
    solved = read(classroom[0] / "source" / QUIZ, QUIZ)
    assert score(classroom, QUIZ, "right", solved) == (10, 10, False)
    solved.cells[2].source = "answer = -1"
    assert score(classroom, QUIZ, "wrong", solved) == (9, 10, False)


def read(folder, name):
    return nbformat.read(folder / f"{name}.ipynb", 4)


def points_of(notebook):
    """Return the cells that are worth a point."""
    return [c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("points")]


def score(classroom, name, student, notebook):
    """Submit, autograde, comment; return score, points, and whether the teacher grades."""
    folder, api = classroom
    path = folder / "submitted" / student / name / f"{name}.ipynb"
    path.parent.mkdir(parents=True)
    nbformat.write(notebook, path)
    result = api.autograde(name, student)
    assert result["success"], result.get("log")
    result = api.generate_feedback(name, student)
    assert result["success"], result.get("log")
    assert (folder / "feedback" / student / name / f"{name}.html").is_file()
    with api.gradebook as gradebook:
        found = gradebook.find_submission(name, student)
        return found.score, found.max_score, found.needs_manual_grade
