"""Each exercise of a chapter checks the reader's answer, and explains its usual mistakes."""

import re
from pathlib import Path

import jupytext
import pytest

from labkernels.chapters import exercises
from labkernels.chapters.exercises.questions import questions

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"
EXERCISE = re.compile(r"```\{exercise\}\n:label: ([\w-]+)\n\n(.*?)\n```", re.DOTALL)


@pytest.mark.parametrize("question", questions().values(), ids=lambda question: question.name)
def test_the_right_answer_passes_and_a_usual_mistake_gets_its_own_words(question):
    assert exercises.check(question.name, one_that_fits(question.right))
    for wrong, says in question.mistakes:
        report = exercises.check(question.name, one_that_fits(wrong))
        assert not report
        assert report.lines == (says,)


def in_chapters():
    """Return label -> (text of the exercise, code of its solution), for all chapters."""
    found = {}
    for path in sorted(NOTEBOOKS.glob("[a-z]*.py")):
        cells = jupytext.read(path).cells
        for i, cell in enumerate(cells):
            for label, text in EXERCISE.findall(cell.source):
                after = cells[i:]
                folded = f"start}} {label}\n:class: dropdown"
                start = next(j for j, c in enumerate(after) if folded in c.source)
                found[label] = text, after[start + 1].source
    return found


def one_that_fits(answer):
    """Return a number or word that fits each part of an answer."""
    return tuple(sum(part) / 2 if isinstance(part, list) else part for part in answer)


def test_every_exercise_of_a_chapter_checks_the_answer():
    found = in_chapters()
    assert len(found) > 30
    for label, (text, solution) in found.items():
        if "Assignment" in text:
            assert "exercises.check(" in solution, label
        else:
            assert f'exercises.check("{label}", ' in text, label
            assert f'exercises.check(\n    "{label}"' in solution or (
                f'assert exercises.check("{label}", ' in solution
            ), label
    asked = {label for label, (text, _) in found.items() if "Assignment" not in text}
    assert asked == {question.name for question in questions().values() if not question.text}


def test_an_unusual_mistake_gets_a_hint_and_not_the_answer():
    report = exercises.check("half-idle-tie", (32, 9, 100))
    assert not report.passed
    assert report.lines == (
        "Part 2, 9.0, is too large.",
        "Part 3, 100.0, is too small.",
        questions()["half-idle-tie"].hint,
    )
    assert repr(exercises.check("tuner-breaks", " Shared memory ")) == "Right."


@pytest.mark.parametrize("answer", [("yes", "no", "no"), 3, (1, 2, "three"), (1, 2, None)])
def test_an_answer_of_another_kind_is_refused(answer):
    with pytest.raises(ValueError, match=r"answer = .*, allowed: three head_dims"):
        exercises.check("half-idle-tie", answer)
