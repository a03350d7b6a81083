"""Quizzes have variants, every exercise has a rubric, and decks have one idea per slide."""

import itertools
import re

import course
import decks
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


@pytest.mark.parametrize("week", WEEKS)
def test_a_deck_has_one_sentence_and_one_thing_per_slide(week):
    deck = decks.decks()[week - 1]
    cells = decks.notebook(week, deck).cells
    slides = [cell.source for cell in cells if cell.metadata["slideshow"]["slide_type"] == "slide"]
    assert len(slides) == len(deck["slides"]) + 1 <= 20
    assert sum("<img alt=" in slide for slide in slides) >= 3
    assert not [cell.source for cell in cells if "{glue" in cell.source], "a role in a note"
    for slide in slides[1:]:
        says, below = slide.removeprefix("## ").split("\n\n", 1)
        assert len(says) <= 80
        assert re.fullmatch(r"(?:[^.?!]|\.(?=\w))*[.?!]", says), says
        assert below.startswith("<img") or len(below.splitlines()) <= 16


def test_a_room_can_read_every_word_of_a_deck():
    assert min(int(size) for size in re.findall(r"font-size: (\d+)px", decks.STYLE)) >= 18


def test_a_figure_that_a_chapter_does_not_have_is_named():
    with pytest.raises(ValueError, match="figure = 'no-ladder', allowed: a figure of the_ladder"):
        decks.notebook(1, {"title": "", "slides": [["", "the_ladder no-ladder"]]})
