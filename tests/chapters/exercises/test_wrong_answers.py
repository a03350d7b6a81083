"""No grader accepts a wrong answer on file."""

import contextlib
import tomllib
from pathlib import Path

import pytest

from book.solutions import solution
from labkernels.chapters import exercises
from labkernels.cuda.compiler import triton

FILE = Path(__file__).with_name("wrong_answers.toml")


def wrong_answers():
    """Yield assignment, class and answer of the wrong answers on file."""
    for name, answers in tomllib.loads(FILE.read_text(encoding="utf-8")).items():
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
        report = exercises.check(name, answer)
        assert not report.passed
        assert "does not compile" not in report.lines[0]
