"""Quizzes have ten questions whose variants differ, and every exercise has a rubric."""

import itertools
import re

import course
import pytest
import quiz

from tests.repo.files import read

WEEKS = range(1, len(quiz.weeks()) + 1)


@pytest.mark.parametrize("week", WEEKS)
def test_a_quiz_has_ten_questions_whose_answers_the_seed_changes(week):
    asked = quiz.weeks()[week - 1]["question"]
    assert len(asked) == 10
    for given in asked:
        names = given["vary"]
        values = [
            dict(zip(names, each, strict=True)) for each in itertools.product(*names.values())
        ]
        variants = [quiz.question(given, each) for each in values]
        assert len({each.ask for each in variants}) >= 3
        assert len({each.answer for each in variants}) >= 2
        for each in variants:
            assert eval(each.fits(), {"answer": each.answer}), each.ask
            assert not eval(each.fits(), {"answer": "?" if isinstance(each.answer, str) else 1e9})
            assert not re.search(r"[{}]", each.ask.replace("`", "")), each.ask


def test_a_seed_always_draws_the_same_quiz_and_another_seed_another_one():
    assert quiz.drawn(1, 5) == quiz.drawn(1, 5)
    assert len({tuple(each.ask for each in quiz.drawn(1, seed)) for seed in range(20)}) == 20


def test_there_is_a_quiz_for_each_week_of_the_syllabus():
    weeks = re.findall(r"^\| (\d) \| .* \| \d+ min \|", read("book/teaching.md"), re.M)
    assert [int(week) for week in weeks] == list(WEEKS)


def test_every_exercise_has_a_rubric_which_students_do_not_see():
    notebooks = dict(course.notebooks())
    found = []
    for name, notebook in notebooks.items():
        for cell in notebook.cells:
            marks = cell.metadata.get("nbgrader", {})
            if "Half a point: " in cell.source:
                assert marks["solution"], name
                assert "### END SOLUTION" not in cell.source, name  # the whole cell is cleared
                found.append(re.search(r"A point: (.*)", cell.source)[1])
    assert sorted(found) == sorted(each["full"] for each in course.rubrics().values())
