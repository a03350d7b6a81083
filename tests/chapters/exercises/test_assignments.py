"""Each starter fails as it should, each usual mistake gets its own words, each solution passes."""

import re

import pytest

from labkernels import verdict
from labkernels.chapters import exercises
from labkernels.chapters.exercises.graders import attention
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


@pytest.mark.one_in(3)
def test_a_starter_is_told_that_it_is_one(exercise):
    report = exercises.check(exercise.name, exercise.starter)
    assert not report.passed
    if exercise.name == "missing_barrier":  # the machine names its race
        assert "A race" in said(report)
        assert "line 74 of attention.cuh, `for (int d = 0;" in said(report)
    else:
        assert exercise.unfinished in said(report)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("exercise", "number"), MISTAKES)
def test_a_usual_mistake_gets_its_own_words(exercise, number, monkeypatch):
    monkeypatch.setattr(attention, "decide", None)  # these words need no verdict
    mistake = exercise.mistakes[number]
    report = exercises.check(exercise.name, mistake.source)
    assert not report.passed
    assert mistake.says in said(report)
    others = {exercise.unfinished, *(m.says for m in exercise.mistakes)} - {mistake.says}
    assert not [words for words in others if words in said(report)]


@pytest.mark.long
def test_a_solution_passes_after_mistakes_that_end_a_launch_amid_an_instruction():
    """A missing fence ends a launch amid a wgmma, and a race ends it amid a warp's instruction."""
    exercise = exercises.get("hand_over_p")
    for mistake in [mistake for mistake in exercise.mistakes if mistake.fault]:
        assert not exercises.check(exercise.name, mistake.source).passed
        report = exercises.check(exercise.name, exercise.solution)
        assert report.passed, said(report)


# An assignment, what is exchanged in its solution, and words of what the reader is told.
MISTAKEN = {
    "a line that does not compile": ("log2_units", ";", "", r"Line \d+, column \d+: expected ';'"),
    "a name of Triton": ("triton_update", "tl.max(b_s", "tl.largest(b_s", "Line 3.*largest"),
    "no return": (
        "maximum",
        "return maximum(m, s);",
        "",
        "no return statement|return a value",  # g++'s words, and clang's
    ),
    "no end of a loop": (
        "maximum",
        "mask /= 2",
        "mask *= 1",
        "(?s)A loop without an end.*line 3 of your answer",
    ),
    "another name": (
        "maximum",
        "raised",
        "highest",
        r"(?s)\AThe kernel does not compile with your answer in it: .* at line 107 of "
        r"attention.cuh, `const float m = raised\(state.m, s\);`.*names of the starter",
    ),
}


@pytest.mark.parametrize("what", MISTAKEN)
def test_what_goes_wrong_is_said_with_the_readers_line(what):
    name, old, new, words = MISTAKEN[what]
    solution = exercises.get(name).solution
    assert old in solution
    report = exercises.check(name, solution.replace(old, new))
    assert not report.passed
    assert re.search(words, said(report)), said(report)
    assert len(set(report.lines)) == len(report.lines)


def test_lines_of_a_primer_are_quoted_and_those_of_a_kernel_of_the_same_name_are_not():
    message = "threads 0 to 31: wait in mbarrier_wait at hopper/pipeline.cuh:30 for parity 0"
    assert in_readers_words(message) == [message]
    for folder in ("", "primers/", "kernels/", "labkernels/"):
        (line,) = in_readers_words(f"reads it at {folder}attention.cuh:64, which is late")
        told = "reads it at line 64 of attention.cuh, `smem.k[key][channel] = k;`, which is late"
        assert line == told
    assert (fault_of("race: writes shared byte 0"), fault_of("something else")) == ("race", "")


def test_an_unusual_mistake_gets_the_verdict():
    source = "LAB_DEVICE float in_log2_units(float s, float scale) { return s * scale * 1.5f; }"
    report = exercises.check("log2_units", source)
    assert not report.passed
    assert "The verdict: BUG: scores: scale times" in said(report)


def test_an_answer_of_another_kind_is_refused_or_read_and_what_does_not_exist_is_said():
    assert exercises.check("register_ledger", "116.0")
    assert exercises.check("planted_bug", " Mask ")
    for call, told in (
        (lambda: exercises.check("maximum", 3), "answer = 3, allowed: the lines of the kernel, as"),
        (lambda: exercises.check("register_ledger", 116.5), r"answer = 116\.5, allowed: a whole"),
        (lambda: exercises.check("register_ledger", "many"), "answer = 'many', allowed: a whole"),
        (lambda: exercises.get("rescales"), "name = 'rescales', allowed: maximum, rescale"),
        (lambda: exercises.get("rescale").hint(9), "number = 9, allowed: 1 to 3"),
    ):
        with pytest.raises(ValueError, match=told):
            call()
    report = Report(False, ("word " * 40, "a table  " * 20, "x" * 120))
    lines = repr(report).splitlines()
    assert lines[1:4] == ["word " * 17 + "word", "word " * 17 + "word", "word word word word"]
    assert lines[4:] == [*report.lines[1:]]


def test_an_answer_that_acts_like_the_starter_is_not_called_the_starter():
    exercise = exercises.get("rescale")
    source = exercise.mistakes[0].source.replace("state.l * rescale", "state.l")
    report = exercises.check("rescale", source)
    assert report.lines[0].startswith("Your answer does what the starter does: l and o keep")
    again = exercises.check("rescale", f"\n{exercise.starter.strip()}  ")
    assert again.lines[0] == exercise.unfinished


@pytest.mark.parametrize("name", ["maximum", "triton_update", "hand_over_p", "register_ledger"])
def test_an_empty_answer_is_none(name):
    assert said(exercises.check(name, " \n")).startswith("There is no answer yet")


def test_the_planted_bug_is_found_by_the_verdict():
    q, k, v, out, lse2 = exercises.planted_bug()
    found = verdict(out, q, k, v, lse2=lse2)
    assert found.answer == "BUG"
    assert "weights and statistics: denominator with keys of score 0" in found.summary()
