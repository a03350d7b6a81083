"""Questions that a page checks in the reader's browser, by what `exercises.check` says to answers.

A chapter has a box below each exercise, and below each assignment, whose answer is numbers or a
word. A page places a question with its text by a separate line, <!-- question: NAME -->, and how
far its reader is in all of them by <!-- progress -->; <!-- audit --> places the audit of a file.
"""

import functools
import html
import json
import re
import textwrap
from pathlib import Path
from typing import Any

import nbformat
import page_assignments
from solutions import solution

from labkernels.audit.verdict import verdict
from labkernels.chapters import exercises
from labkernels.chapters.exercises.exercise import Exercise
from labkernels.chapters.exercises.graders import planted
from labkernels.chapters.exercises.questions import Question, questions

_GRADERS = ("numbers", "planted")  # of assignments in which no kernel of the reader runs
_PLACE = re.compile(r"^<!-- question: ([\w-]+) -->$", re.MULTILINE)
_PROGRESS, _AUDIT = "<!-- progress -->", "<!-- audit -->"
_EXERCISE = re.compile(
    r"^```\{exercise\}\n:label: ([\w-]+)\n\n(.*?)\n```$", re.DOTALL | re.MULTILINE
)
_TASK = re.compile(r'(?:\w+ = )?exercises\.get\("(\w+)"\)(?:\nprint\(.*)?')
_CHECK = re.compile(r"^Check your answer with .*\n?", re.MULTILINE)
_ALSO = "Besides this page, these chapters ask, each as many questions as its number says:\n"
_PROBE = 12345678  # larger than every right number and every usual mistake


@functools.cache
def names() -> list[str]:
    """Returns the exercises and assignments that pages check by a table."""
    assignments = (name for name in exercises.names() if exercises.get(name).grader in _GRADERS)
    return [*questions(), *assignments]


def every() -> list[str]:
    """Returns all that pages check, by a table or by their Python."""
    return [*names(), *page_assignments.names()]


@functools.cache
def table(name: str) -> dict[str, Any]:
    """Returns what a page knows of a question: its parts, and what `check` says to which answer.

    A row holds for the answers whose parts lie within its bounds, or are its words; the first such
    row counts. For other answers, each wrong part has a sentence, with {} in the place of the part,
    and `otherwise` follows.
    """
    if name in questions():
        given = _of_question(questions()[name])
    elif exercises.get(name).grader == "planted":
        given = _of_name(exercises.get(name), planted.PHASES)
    else:
        given = _of_numbers(exercises.get(name))
    return {"name": name, **given}


def _of_question(question: Question) -> dict[str, Any]:
    answers = [question.right, *(wrong for wrong, _ in question.mistakes)]
    rows = []
    for answer in answers:
        fits = tuple(sum(part) / 2 if isinstance(part, list) else part for part in answer)
        when = [p if isinstance(p, str) else question.bounds(p) for p in answer]
        rows.append(_row(question.name, when, fits))
    parts = [  # a word is one of those that are right or a usual mistake
        {"choices": sorted(set(of))} if isinstance(of[0], str) else {"whole": False}
        for of in zip(*answers, strict=True)
    ]
    said = _sentences(question.name, parts, lambda given: given)
    return {**said, "asks": question.asks, "rows": rows, "hints": [question.hint]}


def _of_numbers(exercise: Exercise) -> dict[str, Any]:
    """Returns the table of an assignment whose answer is whole numbers."""
    sources = [solution(exercise.name), exercise.starter, *(m.source for m in exercise.mistakes)]
    whens = [[(int(part), int(part)) for part in source.split(",")] for source in sources]
    rows = [_row(exercise.name, *pair) for pair in zip(whens, sources, strict=True)]
    n = len(whens[0])
    asks = "a whole number" if n == 1 else f"{n} whole numbers"
    parts = [{"whole": True} for _ in range(n)]
    said = _sentences(exercise.name, parts, lambda given: ", ".join(map(str, given)))
    return {**said, "asks": asks, "rows": rows, "hints": exercise.hints}


def _of_name(exercise: Exercise, choices: tuple[str, ...]) -> dict[str, Any]:
    """Returns the table of an assignment whose answer is one of a few names."""
    rows = [_row(exercise.name, [name], name) for name in choices]
    said = {"asks": "the name of a phase", "parts": [{"choices": choices}], "otherwise": []}
    return {**said, "rows": rows, "hints": exercise.hints}


def _row(name: str, when: list, answer: object) -> dict[str, Any]:
    report = exercises.check(name, answer)
    return {"when": when, "passed": report.passed, "lines": report.lines}


def _sentences(name: str, parts: list[dict], written) -> dict[str, Any]:
    """Returns the parts with their sentences, and what follows these, from answers that are wrong.

    Raises: ValueError if the check does not say one sentence of each part.
    """
    otherwise: list[str] = []
    for key, value in (("small", -_PROBE), ("large", _PROBE)):
        probes = ["none" if "choices" in part else value for part in parts]
        lines = exercises.check(name, written(probes)).lines
        for part, probe, line in zip(parts, probes, lines, strict=False):
            shown = repr(probe) if "choices" in part or part["whole"] else repr(float(probe))
            if line.count(shown) != 1:
                raise ValueError(f"{name}: a wrong answer is told {line!r}, without {shown}")
            part[key] = line.replace(shown, "'{}'" if "choices" in part else "{}")
        otherwise = [*lines[len(parts) :]]
    return {"parts": parts, "otherwise": otherwise}


def box(name: str) -> str:
    """Returns the element of a page that asks for an answer; without JavaScript it says so."""
    if name in page_assignments.names():
        return page_assignments.box(name)
    given = html.escape(json.dumps(table(name), separators=(",", ":")))
    call = f"<code>exercises.check({html.escape(json.dumps(name))}, …)</code>"
    return (
        f'```{{raw}} html\n<div class="lab-widget lab-ask" data-lab-widget="question" '
        f'data-question="{given}"><p>With JavaScript on, this page checks your answer; in '
        f"JupyterLab, {call} does.</p></div>\n```"
    )


def ask(notebook: nbformat.NotebookNode) -> None:
    """Puts a box below each exercise and each task that a page checks."""
    cells = []
    for cell in notebook.cells:
        cells.append(cell)
        if cell.cell_type == "markdown":
            cell.source = _EXERCISE.sub(_with_box, cell.source)
        elif (found := _TASK.fullmatch(cell.source.strip())) and found[1] in every():
            put = page_assignments.fold if found[1] in page_assignments.names() else box
            cells.append(nbformat.v4.new_markdown_cell(put(found[1])))
    notebook.cells = cells


def _with_box(found: re.Match[str]) -> str:
    return f"{found[0]}\n\n{box(found[1])}" if found[1] in questions() else found[0]


def placed(text: str, chapters: Path) -> str:
    """Returns a page's Markdown with its questions; an exercise's text comes from its chapter.

    Raises: ValueError for a name of no question that a page checks.
    """

    def block(found: re.Match[str]) -> str:
        name = found[1]
        if name not in every():
            raise ValueError(f"question = {name!r}, allowed: {', '.join(every())}")
        return f"{_text(name, chapters)}\n\n{box(name)}"

    text = _PLACE.sub(block, text).replace(_AUDIT, page_assignments.AUDIT_BOX)
    return text.replace(_PROGRESS, progress(chapters)) if _PROGRESS in text else text


def _text(name: str, chapters: Path) -> str:
    """Returns the question in Markdown."""
    if name in questions():
        asked = questions()[name].text or _in_chapters(chapters)[name][1]
        return _CHECK.sub("", asked).strip()
    exercise = exercises.get(name)
    task = exercise.task.strip().replace("\n", "\n\n")
    if exercise.declarations:
        task += f"\n\n```cpp\n{exercise.declarations}\n```"
    return f"{task}\n\n{_verdict_of_planted()}" if name == "planted_bug" else task


def _verdict_of_planted() -> str:
    """Returns what the verdict says of the planted bug, but for the table of its tests."""
    q, k, v, out, lse2 = exercises.planted_bug()
    summary = verdict(out, q, k, v, lse2=lse2).summary().partition("\n  test ")[0]
    lines = [textwrap.fill(line, 72, subsequent_indent="    ") for line in summary.splitlines()]
    return "The verdict says, above its table of tests:\n\n```text\n{}\n```".format(
        "\n".join(lines)
    )


def progress(chapters: Path) -> str:
    """Returns the element that counts answers, and the chapters that ask."""
    counts: dict[str, int] = {}
    for chapter, _ in _in_chapters(chapters).values():
        counts[chapter] = counts.get(chapter, 0) + 1
    given = html.escape(json.dumps(every()))
    rows = [f"- {{doc}}`/notebooks/{chapter}`: {n}" for chapter, n in counts.items()]
    count = f'<div class="lab-widget" data-lab-widget="progress" data-names="{given}"></div>'
    return "\n".join([f"```{{raw}} html\n{count}\n```\n", _ALSO, *rows])


def _in_chapters(chapters: Path) -> dict[str, tuple[str, str]]:
    """Returns label -> (chapter, text of the exercise) for the questions of chapters."""
    found = {}
    for path in sorted(chapters.glob("*.ipynb")):
        for cell in nbformat.read(path, 4).cells:
            for label, text in _EXERCISE.findall(cell.source):
                if label in questions():
                    found[label] = path.stem, text
    return found
