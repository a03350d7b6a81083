"""No grader accepts a wrong answer on file, or a mutant of its solution that is not named."""

import tomllib
from pathlib import Path

import pytest

from book.solutions import solution
from labkernels.chapters import exercises
from labkernels.cuda.compiler import triton
from tests.chapters.exercises import mutation

HERE = Path(__file__).parent
EQUIVALENT = "same: "  # begins the reason of a mutant that does what the solution does


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
NAMED = on_file("survivors.toml")  # assignment -> mutant -> why it may be accepted


@pytest.mark.few_of_each("name", 1)
@pytest.mark.parametrize(
    ("name", "answer"),
    [pytest.param(name, answer, id=f"{name}: {of}") for name, of, answer in WRONG],
)
def test_a_wrong_answer_on_file_is_not_accepted(name, answer):
    if name == "triton_update" and "ieee" not in answer and triton.available() is not None:
        pytest.skip("the interpreter does not see tf32")
    assert mutation.accepted(exercises.get(name), answer) is False


@pytest.mark.parametrize("name", ["causal_mask", "swizzle", "occupancy_choice"])
def test_a_sample_of_mutants_is_not_accepted(name):
    found = mutation.judged(exercises.get(name), 4)
    assert len(found) == 4
    assert not [mutant for mutant in survivors(found) if mutant not in NAMED.get(name, {})]


@pytest.mark.long
@pytest.mark.parametrize("name", exercises.names())
def test_every_mutant_that_is_accepted_is_named(name):
    """With the others this makes the score of `test_the_score` that of the graders."""
    found = mutation.judged(exercises.get(name), mutation.LEAST)
    assert survivors(found) == list(NAMED.get(name, {}))
    few = len(mutation.mutants(exercises.get(name))) < 50  # of which not all compile
    assert len(found) == mutation.LEAST or few


def test_the_score():
    """At least 95 % of the mutants that do not behave like the solution are rejected.

    The number of mutants is that which is left if no small solution has more than five.
    """
    small = [e for e in map(exercises.get, exercises.names()) if len(mutation.mutants(e)) < 50]
    total = mutation.LEAST * (len(exercises.names()) - len(small)) + 5 * len(small)
    reasons = [why for named in NAMED.values() for why in named.values()]
    same = sum(why.startswith(EQUIVALENT) for why in reasons)
    assert all(len(why) > len(EQUIVALENT) for why in reasons)
    assert 1 - (len(reasons) - same) / (total - same) >= 0.95


def test_mutants_are_the_same_each_time():
    exercise = exercises.get("rescale")
    assert mutation.mutants(exercise) == mutation.mutants(exercise)
    assert solution(exercise.name) not in [mutant.answer for mutant in mutation.mutants(exercise)]


def survivors(found):
    return [mutant for mutant, passes in found.items() if passes]
