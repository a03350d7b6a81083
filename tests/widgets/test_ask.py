"""A page says to every answer what exercises.check says."""

import itertools
import math
import re
from pathlib import Path

import node
import numpy as np
import page_questions
import pytest

from labkernels.chapters import exercises
from labkernels.chapters.exercises.questions import questions
from labkernels.chapters.primers import fragments

SCRIPT = Path(__file__).parent / "scripts" / "answers_of_questions.mjs"
SEED, N_RANDOM, MOST = 5, 40, 300
ODD = (0.0, -0.0, 1e-5, 0.1, 1 / 3, 123456.75, 1e15, 1e16, 1.5e22, -2.5e-7)


def numbers(table, i):
    """Return numbers at, beside and between the bounds of a part, and numbers far from them."""
    bounds = [bound for row in table["rows"] for bound in row["when"][i]]
    if table["parts"][i]["whole"]:
        near = [int(bound) + step for bound in bounds for step in (-1, 0, 1)]
        return list(dict.fromkeys([*near, -7, 0, 999_999_999_999_999]))
    beside = [math.nextafter(b, to) for b in bounds for to in (-math.inf, math.inf)]
    return [*bounds, *beside, *(sum(row["when"][i]) / 2 for row in table["rows"]), *ODD]


def answers(table, draw):
    """Return the answer of each row, and others: all of them, if they are few."""
    parts = range(len(table["parts"]))
    values = [table["parts"][i].get("choices") or numbers(table, i) for i in parts]
    for row in table["rows"]:
        yield [b if isinstance(b, str) else type(values[i][0])(sum(b) / 2)
               for i, b in enumerate(row["when"])]  # fmt: skip
    if math.prod(map(len, values)) <= MOST:
        yield from map(list, itertools.product(*values))
        return
    for _ in range(MOST):
        yield [each[draw.integers(len(each))] for each in values]


def checked(name, answer):
    """Return what exercises.check says to the answer that a page was given."""
    as_text = name not in questions()
    report = exercises.check(name, ", ".join(map(str, answer)) if as_text else tuple(answer))
    return {"passed": report.passed, "lines": list(report.lines)}


def test_a_page_says_what_the_check_says(needs_node):
    draw, cases = np.random.default_rng(SEED), []
    for name in page_questions.names():
        table = page_questions.table(name)
        cases.append({"table": table, "answers": list(answers(table, draw))})
    said = node.run(SCRIPT, given=cases)
    for case, found in zip(cases, said, strict=True):
        name = case["table"]["name"]
        assert {report["passed"] for report in found} == {True, False}, name
        for answer, report in zip(case["answers"], found, strict=True):
            assert report == checked(name, answer), (name, answer)


@pytest.mark.parametrize("name", page_questions.names())
def test_a_reader_may_choose_each_word_that_the_question_names(name):
    table = page_questions.table(name)
    choices = {word for part in table["parts"] for word in part.get("choices", ())}
    assert set(re.findall(r'"([\w ]+)"', table["asks"])) <= choices
    assert table["hints"]
    assert [row["passed"] for row in table["rows"]].count(True) == 1


def test_turns_of_a_bank_are_those_that_the_primer_counts():
    row, turns = np.arange(8), []
    for c in range(8):
        places = (c + 0 * row, 128), (c ^ (row // 2 & 3) * 2, 128), (c + 0 * row, 128 + 16)
        addresses = [np.tile(row * stride + 16 * place, 4) for place, stride in places]
        turns.append(tuple(int(fragments.ways(each).max()) for each in addresses))
    assert set(turns) == {questions()["bank-turns"].right}
