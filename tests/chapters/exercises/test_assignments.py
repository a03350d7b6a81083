"""Each starter fails as it should, each usual mistake gets its own words, each solution passes."""

import re

import pytest

from labkernels.chapters import exercises
from labkernels.chapters.exercises.report import Report, fault_of, in_readers_words

RAW = re.compile(r"\basm\b|\b__\w+|\bthreadIdx\b|\bblockIdx\b")
ALL = [exercises.get(name) for name in exercises.names()]
MISTAKES = [
    pytest.param(exercise, i, id=f"{exercise.name}-{i + 1}")
    for exercise in ALL
    for i in range(len(exercise.mistakes))
]


@pytest.fixture(params=ALL, ids=lambda exercise: exercise.name)
def exercise(request):
    return request.param


def said(report):
    return "\n".join(report.lines)


def test_an_assignment_is_complete(exercise):
    assert exercise.number == ALL.index(exercise) + 1
    assert exercise.difficulty in (1, 2, 3)
    assert exercise.minutes > 0
    assert len(exercise.hints) >= 3
    assert len(exercise.mistakes) >= 3
    assert not RAW.search(exercise.solution + exercise.starter)
    assert exercise.task.split() == repr(exercise).split("\n\n", 1)[1].split("Starter:")[0].split()
    if "\n" in exercise.solution:
        assert exercise.solution.strip() not in repr(exercise)
    words = [exercise.unfinished, *(mistake.says for mistake in exercise.mistakes)]
    assert len(set(words)) == len(words)


def test_a_starter_is_told_that_it_is_one(exercise):
    report = exercises.check(exercise.name, exercise.starter)
    assert not report.passed
    if exercise.name == "missing_barrier":  # the machine names its race
        assert "A race" in said(report)
        assert "line 74 of attention.cuh, `for (int d = 0;" in said(report)
    else:
        assert exercise.unfinished in said(report)


@pytest.mark.parametrize(("exercise", "number"), MISTAKES)
def test_a_usual_mistake_gets_its_own_words(exercise, number):
    mistake = exercise.mistakes[number]
    report = exercises.check(exercise.name, mistake.source)
    assert not report.passed
    assert mistake.says in said(report)
    others = {exercise.unfinished, *(m.says for m in exercise.mistakes)} - {mistake.says}
    assert not [words for words in others if words in said(report)]


def test_the_solution_passes(exercise):
    report = exercises.check(exercise.name, exercise.solution)
    assert report.passed, said(report)


def test_a_solution_passes_after_mistakes_that_end_a_launch_amid_an_instruction():
    """A missing fence ends it amid a wgmma, a race amid a word of a warp."""
    exercise = exercises.get("hand_over_p")
    for mistake in [mistake for mistake in exercise.mistakes if mistake.fault]:
        assert not exercises.check(exercise.name, mistake.source).passed
        report = exercises.check(exercise.name, exercise.solution)
        assert report.passed, said(report)


def test_a_mistake_in_other_words_is_recognised():
    source = """
LAB_DEVICE float masked(float s, int key, int end) {
  if (key > end) s = minus_infinity();
  return s;
}
"""
    report = exercises.check("ragged_mask", source)
    assert "key `end` is the first one that does not count" in said(report)


def test_an_unusual_mistake_gets_the_verdict():
    source = "LAB_DEVICE float in_log2_units(float s, float scale) { return s * scale * 1.5f; }"
    report = exercises.check("log2_units", source)
    assert not report.passed
    assert "The verdict: BUG: wrong scale" in said(report)
    assert "likely cause: the factor on q k" in said(report)


def test_a_compile_error_names_the_readers_line():
    source = "LAB_DEVICE float in_log2_units(float s, float scale) {\n  return s * scale\n}"
    report = exercises.check("log2_units", source)
    assert re.search(r"Line 2, column \d+: expected ';'", said(report))


def test_a_compile_error_is_said_once():
    missing = exercises.get("rescale").solution.replace(";", "", 1)  # g++ says it of two names
    lines = exercises.check("rescale", missing).lines
    assert len(lines) > 1
    assert len(set(lines)) == len(lines)


def test_a_long_line_is_broken_between_words():
    report = Report(False, ("word " * 40, "a table  " * 20, "x" * 120))
    lines = repr(report).splitlines()
    assert lines[1:4] == ["word " * 17 + "word", "word " * 17 + "word", "word word word word"]
    assert lines[4:] == [*report.lines[1:]]


def test_an_error_of_triton_names_the_readers_line():
    source = exercises.get("triton_update").solution.replace("tl.max(b_s", "tl.largest(b_s")
    report = exercises.check("triton_update", source)
    assert "largest" in said(report)
    assert "Line 3" in said(report)


def test_faults_have_names():
    assert fault_of("race: writes shared byte 0") == "race"
    assert fault_of("something else") == ""


def test_a_line_of_a_kernel_is_not_taken_for_a_primers_of_the_same_name():
    message = "threads 0 to 31: wait in mbarrier_wait at hopper/pipeline.cuh:30 for parity 0"
    assert in_readers_words(message) == [message]


def test_what_does_not_exist_is_said():
    with pytest.raises(ValueError, match="name = 'rescales', allowed: maximum, rescale"):
        exercises.get("rescales")
    with pytest.raises(ValueError, match="number = 9, allowed: 1 to 3"):
        exercises.get("rescale").hint(9)
    with pytest.raises(ValueError, match="answer = 'many', allowed: a whole number"):
        exercises.check("register_ledger", "many")


def test_the_planted_bug_is_found_by_the_verdict():
    import labkernels

    q, k, v, out, lse2 = exercises.planted_bug()
    found = labkernels.verdict(out, q, k, v, lse2=lse2)
    assert found.answer == "BUG"
    assert "padding in the denominator" in found.summary()
