"""No grader accepts a wrong answer on file, or a mutant of its solution that is not named."""

import contextlib
import itertools
import tomllib
from pathlib import Path

import pytest

from book.solutions import solution
from labkernels.chapters import exercises
from labkernels.cuda.compiler import triton
from tests.chapters.exercises import mutation

HERE = Path(__file__).parent


def on_file(name):
    return tomllib.loads((HERE / name).read_text(encoding="utf-8"))


def wrong_answers():
    """Yield assignment, class and answer of the wrong answers on file."""
    for name, answers in on_file("wrong_answers.toml").items():
        for given in answers:
            answer = given.get("source", solution(name))
            for old, new in given.get("replace", ()):
                assert old in answer, f"{old!r} is not in the solution of {name}"
                answer = answer.replace(old, new)
            yield name, given["class"], answer


WRONG = list(wrong_answers())


@pytest.mark.few_of_each("name", 1)
@pytest.mark.parametrize(
    ("name", "answer"),
    [pytest.param(name, answer, id=f"{name}: {of}") for name, of, answer in WRONG],
)
def test_a_wrong_answer_on_file_is_not_accepted(name, answer):
    if name == "triton_update" and "ieee" not in answer and triton.available() is not None:
        pytest.skip("the interpreter does not see tf32")
    with contextlib.suppress(ValueError):  # fewer numbers than are asked for
        assert mutation.accepted(exercises.get(name), answer) is False


@pytest.mark.parametrize("name", exercises.names())
def test_nearly_every_mutant_is_rejected(name):
    """By the record, which is of today's solution and grader; each night it is made again."""
    found = mutation.RECORD[name]
    again = f"python -m tests.chapters.exercises.mutation {name}"
    assert found["of"] == mutation.made_from(exercises.get(name)), again
    assert found["accepted"] == list(mutation.NAMED.get(name, {}))
    same = sum(mutation.is_same(name, what) for what in found["accepted"])
    changed = found["judged"] - same
    assert 1 - (len(found["accepted"]) - same) / changed >= 0.95
    # One of six phases was changed, and all of the other five names are judged.
    assert changed == (5 if name == "planted_bug" else mutation.LEAST)


@pytest.mark.long
@pytest.mark.parametrize("name", exercises.names())
def test_the_record_is_what_the_graders_say(name):
    assert mutation.judged(exercises.get(name)) == mutation.RECORD[name]


def test_mutants_are_the_same_each_time():
    exercise = exercises.get("rescale")
    first, again = ([*itertools.islice(mutation.mutants(exercise), 200)] for _ in range(2))
    assert first == again
    assert solution(exercise.name) not in [mutant.answer for mutant in first]
