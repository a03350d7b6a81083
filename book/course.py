"""Writes a course for nbgrader: `make course`.

python book/course.py [--to FOLDER] [--seed N]

source/NAME/NAME.ipynb    for the instructor: each chapter, assignment and quiz, with solutions
release/NAME/NAME.ipynb   for students: nbgrader has taken the solutions and the outputs out
slides/NAME.html          slides of each chapter, and week_1.html and so on, a deck for each week;
                          they load nothing from the network
nbgrader_config.py        with which nbgrader collects and grades in that folder
"""

import argparse
import ast
import functools
import importlib.util
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import answers
import build
import chapter_frame
import decks
import nbformat
import quiz
import slides
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from notebook_io import NOTEBOOKS, ROOT
from plain import ANSWER as YOURS
from plain import SOLUTION
from solutions import solution
from traitlets.config import PyFileConfigLoader

from labkernels.chapters import exercises

RUBRICS = Path(__file__).with_name("teaching") / "rubrics.toml"
LABEL = re.compile(r"^# ```\{exercise\}\n# :label: ([\w-]+)", re.MULTILINE)
WORTH = {"full": "A point", "half": "Half a point"}
SPEC = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
NEEDS = ("nbgrader", "sphinx_revealjs")
CONFIG = Path(__file__).with_name("teaching").joinpath("nbgrader_config.py").read_text("utf-8")
TASK = """\
# {e.title}

Assignment {e.number}: {e.minutes} minutes, difficulty {e.difficulty} of 3.

{task}
{declarations}
`exercises.get("{e.name}").hint(1)` gives the first of {hints} hints.
The cell at the end checks the answer, as often as you like.{lines}
"""
DECLARATIONS = """
<details><summary>The declarations</summary>

```cpp
{declarations}
```

</details>
"""
LINES = " It counts the lines of your answer from `answer =` on, which is in line 1."
ANSWER = """\
from labkernels.chapters import exercises

answer = {starter}
### BEGIN SOLUTION
answer = {solution}
### END SOLUTION"""
QUIZ = """\
# Quiz of week {week}: {title}

Give each answer as a number, or as a word in quotation marks. Your teacher's copy checks them.
"""
QUIZ_ANSWER = """\
answer = None
### BEGIN SOLUTION
answer = {right!r}
### END SOLUTION"""
QUIZ_CHECK = """\
assert answer is not None, "There is no answer yet."
### BEGIN HIDDEN TESTS
assert {fits}
### END HIDDEN TESTS"""
# A student may have written over the whole answer cell, or emptied it.
CHECK = """\
from labkernels.chapters import exercises

report = exercises.check("{name}", globals().get("answer"))
print(report)
assert report.passed"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes a course for nbgrader.")
    parser.add_argument(
        "--to", type=Path, default=ROOT / "_build" / "course", help="the course's folder"
    )
    parser.add_argument("--seed", type=int, default=0, help="draws the numbers of the quizzes")
    options = parser.parse_args()
    folder = options.to.resolve()
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(f"make course needs {', '.join(missing)}: pip install -e '.[course]'")
    for name, notebook in notebooks(options.seed):
        path = folder / "source" / name / f"{name}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, path)
    (folder / "nbgrader_config.py").write_text(CONFIG)
    release(folder)
    slides.write(folder / "slides")
    with build.one_build():
        build.execute_notebooks(force=False)  # the decks draw their figures anew
    decks.write(folder / "slides")
    print(f"course: {folder}")


def notebooks(seed: int = 0) -> Iterator[tuple[str, nbformat.NotebookNode]]:
    """Yields name and instructor's notebook of each chapter, assignment and quiz."""
    for chapter in chapter_frame.chapters():
        labels = LABEL.findall((NOTEBOOKS / f"{chapter.file}.py").read_text(encoding="utf-8"))
        notebook = nbformat.read(NOTEBOOKS / f"{chapter.file}.ipynb", 4)
        yield chapter.file, answered(notebook, labels)
    for name in exercises.names():
        yield name, assignment(exercises.get(name))
    for week in range(1, len(quiz.weeks()) + 1):
        yield f"quiz_{week}", quiz_notebook(week, seed)


def answered(notebook: nbformat.NotebookNode, labels: list[str]) -> nbformat.NotebookNode:
    """Returns a chapter whose solutions nbgrader clears: one point by check, one by the grader.

    labels: those of its exercises, whose rubrics stand with the solutions.
    """
    exercise, place, cells = 0, None, []
    for cell in notebook.cells:
        if YOURS in cell.metadata.get("tags", ()):
            continue  # with nbgrader students answer in the cell of the solution
        cells.append(cell)
        if cell.source == SOLUTION:
            exercise, place = exercise + 1, 0
            cell.source = "#### Your answer"
            cell.metadata.clear()  # not folded
        elif cell.cell_type == "markdown" and cell.source.startswith("#"):
            place = None
        elif place is not None:
            _grade(cell, f"exercise-{exercise}-{place}", solution=True, points=int(not place))
            checks = _check_of(cell, f"exercise-{exercise}-check")
            cells += checks
            if not place:
                _add_rubric(cell, labels[exercise - 1])
            place += 1
    notebook.cells = cells
    return notebook


@functools.cache
def rubrics() -> dict[str, dict[str, str]]:
    """Returns what a reason is worth, by the label of the exercise."""
    return tomllib.loads(RUBRICS.read_text(encoding="utf-8"))


def _add_rubric(cell: nbformat.NotebookNode, label: str) -> None:
    """Adds the rubric of an exercise to the cell that the teacher grades, and nbgrader clears."""
    lines = [f"{worth}: {rubrics()[label][key]}" for key, worth in WORTH.items()]
    if cell.cell_type == "markdown":
        cell.source = "\n\n".join([cell.source, *lines])
    else:
        cell.source = "\n".join([*(f"# {line}" for line in lines), cell.source])


def _check_of(cell: nbformat.NotebookNode, grade_id: str) -> list[nbformat.NotebookNode]:
    """Moves the check in a solution's last line to its own cell; the line then names the answer.

    The student's cell begins with an empty answer, so that no earlier exercise's answer is graded.
    """
    last = ast.parse(cell.source).body[-1] if cell.cell_type == "code" else None
    match last:
        case ast.Assert(test=ast.Call(args=[ast.Constant(value=name), given])):
            given = ast.get_source_segment(cell.source, given)
            before = cell.source.splitlines()[: last.lineno - 1]
            solution = ["### BEGIN SOLUTION", *before, f"answer = {given}", "### END SOLUTION"]
            cell.source = "\n".join([answers.cell(name).splitlines()[0], *solution])
            check = new_code_cell(CHECK.format(name=name), id=grade_id)
            _grade(check, grade_id, solution=False, points=1)
            return [check]
    return []


def assignment(exercise: exercises.Exercise) -> nbformat.NotebookNode:
    """Returns an assignment that nbgrader grades by itself: the task, the answer, the check."""
    paragraphs = exercise.task.strip().replace("\n", "\n\n")
    starter, right = map(answers.literal, (exercise.starter, solution(exercise.name)))
    lines = LINES if "\n" in starter else ""
    shown = DECLARATIONS.format(declarations=exercise.declarations)
    task = TASK.format(
        e=exercise,
        task=paragraphs,
        declarations=shown if exercise.declarations else "",
        hints=len(exercise.hints),
        lines=lines,
    )
    answer = new_code_cell(ANSWER.format(starter=starter, solution=right), id="answer")
    check = new_code_cell(CHECK.format(name=exercise.name), id="check")
    _grade(answer, f"{exercise.name}-answer", solution=True, points=0)
    _grade(check, f"{exercise.name}-check", solution=False, points=exercise.difficulty)
    cells = [new_markdown_cell(task.strip(), id="task"), answer, check]
    return new_notebook(cells=cells, metadata={"kernelspec": SPEC})


def quiz_notebook(week: int, seed: int) -> nbformat.NotebookNode:
    """Returns a quiz, whose checks only the teacher's copy has."""
    title = QUIZ.format(week=week, title=quiz.weeks()[week - 1]["title"])
    cells = [new_markdown_cell(title.strip(), id="title")]
    for i, each in enumerate(quiz.drawn(week, seed), 1):
        answer = new_code_cell(QUIZ_ANSWER.format(right=each.answer), id=f"answer-{i}")
        check = new_code_cell(QUIZ_CHECK.format(fits=each.fits()), id=f"check-{i}")
        _grade(answer, f"answer-{i}", solution=True, points=0)
        _grade(check, f"check-{i}", solution=False, points=1)
        cells += [new_markdown_cell(f"**{i}.** {each.ask}", id=f"question-{i}"), answer, check]
    return new_notebook(cells=cells, metadata={"kernelspec": SPEC})


def _grade(cell: nbformat.NotebookNode, grade_id: str, *, solution: bool, points: int) -> None:
    """Marks a cell in nbgrader's format: a cell to answer in, or a cell that checks."""
    marks = {"grade": points > 0, "grade_id": grade_id, "locked": not solution}
    marks |= {"solution": solution, "task": False, "schema_version": 3}
    cell.metadata["nbgrader"] = marks | ({"points": points} if points else {})


def release(folder: Path):
    """Lets nbgrader write the student notebooks and enter their points; returns its API."""
    from nbgrader.apps import NbGraderAPI

    programs = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    os.environ["PATH"] = os.pathsep.join(programs)  # nbgrader starts alembic by its name
    config = PyFileConfigLoader("nbgrader_config.py", path=str(folder)).load_config()
    config.CourseDirectory.root = str(folder)
    api = NbGraderAPI(config=config)
    for source in sorted((folder / "source").iterdir()):
        result = api.generate_assignment(source.name)
        if not result["success"]:
            raise SystemExit(f"nbgrader refuses {source.name}:\n{result.get('log')}")
    return api


if __name__ == "__main__":
    main()
