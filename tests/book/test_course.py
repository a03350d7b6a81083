"""nbgrader clears and grades the right cells of the course, and the syllabus has no gap."""

import re
from textwrap import dedent

import chapter_frame
import course
import nbformat
import pytest
from solutions import solution

from labkernels.chapters import exercises
from tests.repo.files import read

NAMES = exercises.names()
CHAPTERS = [chapter.file for chapter in chapter_frame.chapters()]


@pytest.fixture(scope="module")
def notebooks():
    return dict(course.notebooks())


def marked(notebook, **marks):
    cells = [cell for cell in notebook.cells if "nbgrader" in cell.metadata]
    return [c for c in cells if marks.items() <= c.metadata["nbgrader"].items()]


def test_every_chapter_and_assignment_is_a_valid_notebook(notebooks):
    quizzes = {f"quiz_{week}" for week in range(1, 10)}
    assert set(notebooks) == {*CHAPTERS, *NAMES, *quizzes}
    for notebook in notebooks.values():
        nbformat.validate(notebook)
        ids = [cell.metadata["nbgrader"]["grade_id"] for cell in marked(notebook)]
        assert ids
        assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("name", NAMES)
def test_an_assignment_is_its_starter_its_solution_and_its_check(notebooks, name):
    (answer,), (check,) = (marked(notebooks[name], solution=solved) for solved in (True, False))
    starter = re.sub(r"### BEGIN SOLUTION.*### END SOLUTION", "", answer.source, flags=re.DOTALL)
    for source, expected in (
        (starter, exercises.get(name).starter),
        (answer.source, solution(name)),
    ):
        namespace = {}
        exec(source, namespace)
        assert dedent(str(namespace["answer"])).strip() == dedent(expected).strip()
    assert check.metadata["nbgrader"]["points"] == exercises.get(name).difficulty
    assert check.metadata["nbgrader"]["locked"]


def test_a_teacher_reads_the_solution_and_a_student_where_lines_are_counted(notebooks):
    task, answer, _ = notebooks["hand_over_p"].cells
    assert "\nLAB_DEVICE void store_p" in answer.source  # at the margin
    assert "named_arrive(p_ready + group, C::consumer_threads);" in answer.source.split("SOLUT")[1]
    assert "<details>" in task.source
    assert "typename C::Pe pe;         // kpe, and then P" in task.source
    assert "\n\n`named_sync(group_done + group" in task.source  # a paragraph of its own
    assert "lines of your answer from `answer =` on" in task.source
    assert "lines of your answer" not in notebooks["register_ledger"].cells[0].source


def test_a_check_grades_an_answer_and_refuses_the_starter_or_an_empty_cell(notebooks, capsys):
    answer, check = notebooks["register_ledger"].cells[1:]
    exec(f"{answer.source}\n{check.source}", {})
    exec(f"answer = {solution('register_ledger')!r}\n{check.source}", {})
    starter = re.sub(r"### BEGIN SOLUTION.*### END SOLUTION", "", answer.source, flags=re.DOTALL)
    for wrong in (starter, "answer = 1", ""):
        with pytest.raises(AssertionError):
            exec(f"{wrong}\n{check.source}", {})
    for name in ("register_ledger", "rescale", "roads-chance"):
        with pytest.raises(AssertionError):
            exec(course.CHECK.format(name=name), {})
        assert "There is no answer yet" in capsys.readouterr().out


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapters_solutions_are_cleared_and_nothing_else(notebooks, name):
    n_exercises = len(re.findall(r"\{exercise\}", read(f"notebooks/{name}.py")))
    cells = marked(notebooks[name], solution=True)
    assert len(marked(notebooks[name], grade=True, solution=True)) == n_exercises
    asked = re.findall(r'exercises\.check\(\s*"([\w-]+-[\w-]+)"', read(f"notebooks/{name}.py"))
    checks = [c.source for c in marked(notebooks[name], solution=False)]
    assert [re.search(r'"([^"]*)"', source)[1] for source in checks] == list(dict.fromkeys(asked))
    assert not [cell for cell in cells if re.search(r'check\(\s*"\w+-', cell.source)]
    sources = [cell.source for cell in notebooks[name].cells]
    assert sources.count("#### Your answer") == n_exercises
    assert sum("answer = None" in source for source in sources) == len(checks)
    texts = [cell.source for cell in cells if cell.cell_type == "markdown"]
    assert not [text for text in texts if text.startswith("#")]
    assert [c for c in cells if c.cell_type == "code" and re.search("assert|answer =", c.source)]


def test_the_syllabus_gives_out_everything_once_in_the_weeks_of_the_term():
    rows = re.findall(
        r"^\| \d \| .* \| \d+ min \| (.*) \| (\d+) min \|$", read("book/teaching.md"), re.M
    )
    given = [re.findall(r"`(\w+)`", work) for work, _ in rows]
    assert sorted(name for week in given for name in week) == sorted([*CHAPTERS, *NAMES])
    term = re.findall(r"^\| \d \| (.*) \| .* \| (\d+) \|$", read("book/paths.md"), re.M)
    for week, (_, minutes), (chapters, of_term) in zip(given, rows, term, strict=True):
        assert minutes == of_term
        assert set(week) & set(CHAPTERS) == set(re.findall(r"notebooks/(\w+)", chapters))
