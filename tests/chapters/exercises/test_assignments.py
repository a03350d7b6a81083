"""Each starter fails as it should, and each usual mistake gets its own words."""

import re
from pathlib import Path

import pytest

import labkernels
from book.solutions import solution
from labkernels.chapters import exercises
from labkernels.chapters.exercises.graders import attention
from labkernels.chapters.exercises.report import Report, in_readers_words
from labkernels.cuda.compiler import nvrtc, triton

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
    assert not RAW.search(solution(exercise.name) + exercise.starter)
    shown = repr(exercise).split("\n\n", 1)[1].split("Starter:")[0]
    task, _, declarations = shown.partition("Declarations:")
    assert exercise.task.split() == task.split()
    assert exercise.declarations == declarations.strip()
    assert not hasattr(exercise, "solution")
    assert solution(exercise.name).strip() not in repr(exercise) or "\n" not in exercise.starter
    words = [exercise.unfinished, *(mistake.says for mistake in exercise.mistakes)]
    assert len(set(words)) == len(words)


def test_the_package_has_no_solution_but_the_kernels_own_lines():
    package = Path(labkernels.__file__).parent
    texts = [path.read_text() for path in package.rglob("*") if path.suffix in (".toml", ".cuh")]
    every = " ".join(" ".join(texts).split())
    assert " ".join(solution("hand_over_p").split()) in every  # a kernel's own
    for name in ("maximum", "rescale", "missing_barrier", "two_stages", "swizzle", "triton_update"):
        assert " ".join(solution(name).split()) not in every, name


@pytest.mark.one_in(4)
def test_a_starter_is_told_that_it_is_one(exercise):
    report = exercises.check(exercise.name, exercise.starter)
    assert not report.passed
    if exercise.name == "missing_barrier":  # the machine names its race
        assert "A race" in said(report)
        assert "line 74 of attention.cuh, `for (int d = 0;" in said(report)
    else:
        assert exercise.unfinished in said(report)


@pytest.mark.one_in(12)
@pytest.mark.parametrize(("exercise", "number"), MISTAKES)
def test_a_usual_mistake_gets_its_own_words(exercise, number, monkeypatch):
    monkeypatch.setattr(attention, "decide", None)  # these words need no verdict
    mistake = exercise.mistakes[number]
    report = exercises.check(exercise.name, mistake.source)
    assert not report.passed
    assert mistake.says in said(report)
    others = {exercise.unfinished, *(m.says for m in exercise.mistakes)} - {mistake.says}
    assert not [words for words in others if words in said(report)]


def test_a_solution_passes_after_mistakes_that_end_a_launch_amid_an_instruction():
    """A missing fence ends a launch amid a wgmma, and a race ends it amid a warp's instruction."""
    exercise = exercises.get("hand_over_p")
    for mistake in [mistake for mistake in exercise.mistakes if mistake.fault]:
        assert not exercises.check(exercise.name, mistake.source).passed
        report = exercises.check(exercise.name, solution(exercise.name))
        assert report.passed, said(report)


# Solutions with a change, or whole answers, and what is said of them.
CHANGED = [
    ("maximum", "maximum(m, s[i])", "fmaxf(m, s[i])", "; the lab's word is `maximum"),
    ("maximum", "return m;", "", r"no return statement|return a value"),  # gcc's words, clang's
    ("maximum", "mask /= 2", "mask *= 1", r"(?s)A loop without an end.*line 3 of your answer"),
    ("triton_update", "tl.max(b_s", "tl.largest(b_s", "(?s)Line 3.*largest"),
    ("missing_barrier", "sync_warp();", "sync_block();", "to sync_block 2 times and .* 0 times in"),
    # the output is never written, since the weights are 0: that is no store of the reader's
    (
        "split_and_merge",
        "ex2_approx(a.m - m)",
        "ex2_approx(2.f * (b.m - m) - 1.f)",
        "verdict: BUG.$",
    ),
    # what no request shows
    ("fragment_of_p", "s[1][0]", "s[0][4]", "index 4 is out of bounds of its dimension"),
    ("log2_units", "scale * 1", "scale * (scale > 1.f ? scale : 1.f) * 1", "outside"),
    ("ragged_mask", "key < end", "key < end || key == 0", "outside"),
    ("page_lookup", "(page * p.page_size", "(i64(int(page * p.page_size))", "outside"),
]
MASKED = """
LAB_DEVICE float masked(float s, int key, int end) {
  if (key > end) s = minus_infinity();
  return s;
}
"""
IN_LOG2 = "LAB_DEVICE float in_log2_units(float s, float scale) { return s * scale * 1.5f; }"
UNENDED = "LAB_DEVICE float in_log2_units(float s, float scale) {\n  return s * scale\n}"
CHANGED += [
    ("ragged_mask", "", MASKED, "key `end` is the first one that does not count"),
    ("log2_units", "", IN_LOG2, "The verdict: BUG: scores: scale times"),
    ("log2_units", "", UNENDED, r"Line 2, column \d+: expected ';'"),
]


@pytest.mark.parametrize(("name", "right", "wrong", "said_of_it"), CHANGED)
def test_what_is_said_of_a_wrong_answer(name, right, wrong, said_of_it):
    assert right in solution(name)
    report = exercises.check(name, solution(name).replace(right, wrong) if right else wrong)
    assert not report.passed
    assert re.search(said_of_it, said(report), re.MULTILINE)


def test_a_fault_names_its_request_and_the_call_that_leads_there():
    source = exercises.get("page_lookup").mistakes[1].source
    lines = exercises.check("page_lookup", source).lines
    assert "This was the request with three full tiles." in lines
    lines = exercises.check("missing_barrier", exercises.get("missing_barrier").starter).lines
    assert "Your answer calls `score`, where this is, in line 6." in lines
    assert "Your answer calls `load_tile`, where this is, in line 3, 10." in lines


def test_a_compile_error_is_said_once():
    missing = solution("rescale").replace("float top", "float tip").replace("weight =", "w =")
    lines = exercises.check("rescale", missing).lines
    assert len(lines) > 1
    assert len(set(lines)) == len(lines)


def test_a_long_line_is_broken_between_words():
    report = Report(False, ("word " * 40, "a table  " * 20, "x" * 120))
    lines = repr(report).splitlines()
    assert lines[1:4] == ["word " * 17 + "word", "word " * 17 + "word", "word word word word"]
    assert lines[4:] == [*report.lines[1:]]


def test_a_line_of_a_kernel_is_not_taken_for_a_primers_of_the_same_name():
    message = "threads 0 to 31: wait in mbarrier_wait at hopper/pipeline.cuh:30 for parity 0"
    assert in_readers_words(message) == [message]


def test_a_primers_line_is_quoted_however_the_message_names_its_folder():
    for folder in ("", "primers/", "kernels/", "labkernels/"):
        (line,) = in_readers_words(f"reads it at {folder}attention.cuh:64, which is late")
        assert (
            line
            == "reads it at line 64 of attention.cuh, `smem.k[key][channel] = k;`, which is late"
        )


def test_a_fault_without_a_mistake_that_fits_gets_no_advice():
    """Two fragments are stored in the same rows: a race, but no thread came too early."""
    exercise = exercises.get("hand_over_p")
    report = exercises.check(
        "hand_over_p", solution(exercise.name).replace("lane % 16", "lane % 8")
    )
    assert "A race" in said(report)
    assert not [m for m in exercise.mistakes if m.says in said(report)]


def test_an_answer_that_acts_like_the_starter_is_not_called_the_starter():
    exercise = exercises.get("rescale")
    source = exercise.mistakes[0].source.replace("state.l * rescale", "state.l * 1.f")
    report = exercises.check("rescale", source)
    assert report.lines[0].startswith("Your answer does what the starter does: l and o keep")
    again = exercises.check("rescale", f"\n{exercise.starter.strip()}  ")
    assert again.lines[0] == exercise.unfinished


@pytest.mark.parametrize("name", ["maximum", "triton_update", "hand_over_p", "register_ledger"])
def test_an_empty_answer_is_none(name):
    assert said(exercises.check(name, " \n")).startswith("There is no answer yet")


def test_an_answer_that_lacks_a_name_is_told_where_the_kernel_needs_it():
    source = solution("maximum").replace("row_maximum", "highest")
    what, hint = exercises.check("maximum", source).lines
    assert what.startswith("The kernel does not compile with your answer in it: ")
    assert what.endswith("at caller.cuh:5.")
    assert "names of the starter" in hint


def test_an_answer_of_another_kind_is_refused_or_read():
    with pytest.raises(ValueError, match="answer = 3, allowed: the lines of the kernel, as text"):
        exercises.check("maximum", 3)
    with pytest.raises(ValueError, match=r"answer = 116\.5, allowed: a whole number"):
        exercises.check("register_ledger", 116.5)
    assert exercises.check("register_ledger", "116.0")
    assert exercises.check("planted_bug", " Mask ")


def test_what_does_not_exist_is_said():
    with pytest.raises(ValueError, match="name = 'rescales', allowed: maximum, rescale"):
        exercises.get("rescales")
    with pytest.raises(ValueError, match="number = 9, allowed: 1 to 3"):
        exercises.get("rescale").hint(9)
    with pytest.raises(ValueError, match="answer = 'many', allowed: a whole number"):
        exercises.check("register_ledger", "many")


def test_the_planted_bug_is_found_by_the_verdict():
    q, k, v, out, lse2 = exercises.planted_bug()
    found = labkernels.verdict(out, q, k, v, lse2=lse2)
    assert found.answer == "BUG"
    assert "weights and statistics: denominator with keys of score 0" in found.summary()


@pytest.mark.parametrize(
    ("words", "said_of_it"),
    [
        ("__shared__ float best[32];", "Line 4: shared memory is the kernel's `smem`"),
        ("return row_maximum(m, s);", "Line 4: row_maximum calls itself"),
        ("static float last; last = m;", "Line 4: a static variable is one for all threads"),
        ("/* why\n*/ #define m 0", "Line 5: of the lines that begin with #"),
    ],
)
def test_what_has_no_place_in_a_kernel_is_refused_in_one_line(words, said_of_it):
    source = solution("maximum").replace("  return m", f"  {words}\n  return m")
    line = said(exercises.check("maximum", source))
    assert line.startswith(said_of_it)
    assert "\n" not in line


def test_what_an_answer_prints_is_shown():
    words = '  if (thread_x() == 3) printf("m is %g\\n", m);\n  return m'
    report = exercises.check("maximum", solution("maximum").replace("  return m", words))
    assert report.passed
    assert re.fullmatch(r"printf: m is [\d.]+", report.lines[-13])
    assert re.fullmatch(r"printf: and \d+ more lines\.", report.lines[-1])
    assert said(exercises.check("wgmma_mask", words)).startswith("Line 1: printf has no place here")


def test_a_fault_behind_the_readers_lines_names_the_line_whose_value_it_uses():
    source = "LAB_DEVICE int place_of(int row, int c) {\n  return (c - row) % 8;\n}"
    lines = exercises.check("swizzle", source).lines
    assert "That place uses what your lines return, in line 2 of your answer." in lines
    assert any("-1 % 8 is -1" in line for line in lines)


def test_what_only_the_compiled_kernel_shows_is_said():
    if triton.available() is not None:
        pytest.skip("needs Triton's compiler")
    source = solution("triton_update").replace(', input_precision="ieee"', "")
    assert "rounds to tf32" in said(exercises.check("triton_update", source))


@pytest.mark.skipif(nvrtc.available() is not None, reason="needs NVRTC")
@pytest.mark.parametrize(
    ("words", "said_of_it"),
    [
        ("m = __builtin_fmaxf(m, m);", "refuses line 4: identifier"),
        ("float top; m = m < -1e38f ? top : m;", 'warns of line 4: variable "top" is used before'),
    ],
)
def test_what_runs_on_the_cpu_machine_alone_is_no_answer(words, said_of_it):
    source = solution("maximum").replace("  return m", f"  {words}\n  return m")
    report = exercises.check("maximum", source)
    assert not report.passed
    assert said_of_it in said(report)


@pytest.mark.parametrize("name", ["missing_barrier", "two_stages"])
def test_a_word_of_the_lab_may_have_its_namespace(name):
    source = solution(name).replace("sync_block()", "lab::sync_block()")
    assert exercises.check(name, source).passed


@pytest.mark.parametrize(
    ("line", "said_of_it"),
    [
        ("import numpy as np", "Line 3: a kernel imports and declares nothing."),
        ("tl.dot = 0", "Line 3: tl.dot is nothing that a kernel may touch."),
        ("f = tl.core", "Line 3: tl.core is no function of Triton's language."),
        ("eval('0')", "Line 3: the name eval is unknown in a kernel."),
        ("b_l = b_l * [1.0][0] + sum(b_l)", "Line 3: the name sum is unknown in a kernel."),
    ],
)
def test_an_answer_in_triton_is_a_kernel_and_no_other_python(line, said_of_it):
    source = solution("triton_update").replace("    m_new =", f"    {line}\n    m_new =", 1)
    assert said_of_it in said(exercises.check("triton_update", source))
