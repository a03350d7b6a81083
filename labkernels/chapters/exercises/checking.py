"""Grades an answer: first faults that the machine finds, then the result, then remarks.

A right answer is compared with the reference kernel (`beside_reference`), and with itself on a GPU.
A grader whose kernel can run on a GPU has `ON_GPU`: the architecture that it needs, "" for any.
"""

import contextlib
import importlib
from textwrap import dedent
from types import ModuleType

from labkernels.chapters.exercises.beside_reference import compared
from labkernels.chapters.exercises.compiled import RefusedForGpus
from labkernels.chapters.exercises.exercise import Exercise, get
from labkernels.chapters.exercises.graders.attention import alike
from labkernels.chapters.exercises.questions import questions
from labkernels.chapters.exercises.report import (
    Report,
    fault_of,
    in_own_lines,
    in_readers_words,
    negative_remainder,
    of_printf,
    refused,
)
from labkernels.chapters.primers import machine
from labkernels.cuda.host.build import HostKernelError

STILL, ALIKE = "This is still the starter", "Your answer does what the starter does"
NO_ANSWER = "There is no answer yet. Give yours the name `answer`, in the cell above the check."
EMPTY = "There is no answer yet: it is empty. Begin with the starter."


def check(name: str, answer: object) -> Report:
    """Judge an answer to an assignment or to an exercise of a chapter; say what is wrong with it.

    An assignment takes the source that its starter becomes, or a number. An exercise has a label
    such as "roads-chance", and takes the numbers or words that its text names.
    Raises: ValueError if there is no such exercise, or for an answer of another kind than it takes;
    CompilerMissing where there is no compiler.
    """
    if answer is None:
        return Report(False, (NO_ANSWER,))
    if name in questions():
        return questions()[name].judge(answer)
    exercise = get(name)
    grader = importlib.import_module(f"{__package__}.graders.{exercise.grader}")
    if exercise.starter and not str(answer).strip():
        return Report(False, (EMPTY,))
    if exercise.place[0] and not isinstance(answer, str):
        raise ValueError(f"answer = {answer!r}, allowed: the lines of the kernel, as text")
    prints = machine.PRINTS and "/" not in exercise.place[0]
    if exercise.place[0] and (why := refused(str(answer), prints=prints)):
        return Report(False, (why,))
    report = None
    printed = machine.printed if "printf" in str(answer) else contextlib.nullcontext
    with printed() as lines:
        try:
            results = grader.run(exercise, answer)
        except HostKernelError as error:
            report = Report(False, tuple(_of_fault(exercise, str(answer), str(error))))
    if report is None:
        with printed():  # the same again
            report = _judged(exercise, grader, answer, results)
    return Report(report.passed, (*report.lines, *of_printf(lines or [])))


def _judged(exercise: Exercise, grader: ModuleType, answer: object, results: dict) -> Report:
    """Judge the results of an answer."""
    wrong = iter(grader.judge(exercise, results))
    first = next(wrong, None)
    if first is None and hasattr(grader, "judge_compiled"):
        first = next(wrong := grader.judge_compiled(exercise, answer), None)
        if first is not None:
            return Report(False, (first, *wrong))
    if first is None:
        remarks = grader.remarks(exercise, results)
        try:
            remarks += compared(exercise, grader, answer, results)
        except RefusedForGpus as error:
            return Report(False, (str(error),))
        remarks += _on_gpu(exercise, grader, answer, results)
        return Report(True, tuple(remarks))
    said = _known_mistake(exercise, grader, results)
    if said and not _same(exercise.starter, answer):
        said = said.replace(STILL, ALIKE)
    about = negative_remainder(str(answer)) if exercise.place[0] else []
    return Report(False, (said, first) if said else (first, *wrong, *about))


def _of_fault(exercise: Exercise, answer: str, message: str) -> list[str]:
    """Return the machine's message, and the assignment's advice if it knows this kind of fault."""
    fault, lines = fault_of(message), in_readers_words(message)
    kinds = [fault] if fault else []
    if fault == "index" and not any("of your answer" in line for line in lines):
        kinds.append("bounds")  # a value that the answer returns: not each compiler notes its index
    known = [m for m in exercise.mistakes if m.fault in kinds]
    alike = [m for m in known if m.where in " ".join([message, *lines])]
    if exercise.place[0] and fault in ("bounds", "index", "race", "alignment", "unwritten"):
        lines += [*in_own_lines(answer, lines), *negative_remainder(answer)]
    advice = [m.says for m in alike[:1]]
    if _same(exercise.starter, answer):
        advice = [exercise.unfinished]
    return [*lines, *(words.strip() for words in advice)]


def _on_gpu(exercise: Exercise, grader: ModuleType, answer: object, results: dict) -> list[str]:
    """Say whether a right answer gives the same bits on this machine's GPU, if it has one."""
    arch = getattr(grader, "ON_GPU", None)
    if arch is None or not machine.has_gpu(arch):
        return []
    with machine.on_gpu():
        there = grader.run(exercise, answer)
    names = tuple(grader.OUTPUTS)
    pairs = [(results[name], there[name]) for name in results if name.startswith(names)]
    equal = [(one == other) | ((one != one) & (other != other)) for one, other in pairs]
    differing = sum(int((~same).sum()) for same in equal)
    if not differing:
        return ["On this machine's GPU all bits are the same."]
    count = sum(one.size for one, _ in pairs)
    return [f"On this machine's GPU {differing} of {count} numbers have other bits."]


def _known_mistake(exercise: Exercise, grader: ModuleType, results: dict) -> str:
    """Return the message for an answer that acts like the starter or a usual mistake."""
    acts_like = getattr(grader, "acts_like", lambda *asked: alike(grader.run(*asked[:2]), asked[2]))
    usual = [(exercise.starter, exercise.unfinished)]
    usual += [(mistake.source, mistake.says) for mistake in exercise.mistakes if not mistake.fault]
    for source, says in usual:
        try:
            if acts_like(exercise, source, results):
                return says.strip()
        except HostKernelError:
            continue
    return ""


def _same(starter: str, answer: object) -> bool:
    """Return whether an answer is the starter, wherever its lines begin."""
    return dedent(starter).strip() == dedent(str(answer)).strip()
