"""No grader accepts a wrong answer on file, or a mutant of its solution that is not named."""

import pytest

from labkernels.chapters import exercises
from labkernels.cuda.compiler import triton
from tests.chapters.exercises import mutation

WRONG = mutation.wrong_answers()
NAMED = mutation.survivors()
EQUIVALENT = "same: "  # begins the reason of a mutant that does what the solution does


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
    assert len(found) == NUMBERS.get(name, mutation.LEAST)


def test_the_score():
    """At least 95 % of the mutants that do not behave like the solution are rejected."""
    total = sum(NUMBERS.get(name, mutation.LEAST) for name in exercises.names())
    reasons = [why for named in NAMED.values() for why in named.values()]
    same = sum(why.startswith(EQUIVALENT) for why in reasons)
    assert all(len(why) > len(EQUIVALENT) for why in reasons)
    assert 1 - (len(reasons) - same) / (total - same) >= 0.95


def test_mutants_are_the_same_each_time():
    exercise = exercises.get("rescale")
    assert mutation.mutants(exercise) == mutation.mutants(exercise)
    assert exercise.solution not in [mutant.answer for mutant in mutation.mutants(exercise)]


def survivors(found):
    return [mutant for mutant, passes in found.items() if passes]
