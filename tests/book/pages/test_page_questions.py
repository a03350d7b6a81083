"""A page has a box below each exercise that it checks, and a question's text from its chapter."""

import html
import json
import re

import nbformat
import page_assignments
import page_questions
import pytest
from solutions import solution

from labkernels.chapters import exercises

EXERCISE = """\
```{exercise}
:label: latent-tokens

How many tokens?
Check your answer with `exercises.check("latent-tokens", tokens)`.
```

```{solution-start} latent-tokens
```"""
OTHER = EXERCISE.replace("latent-tokens", "block-rescale")


@pytest.fixture
def chapters(tmp_path):
    cells = [nbformat.v4.new_markdown_cell(text) for text in (EXERCISE, OTHER)]
    cells.append(nbformat.v4.new_code_cell('exercises.get("register_ledger")'))
    cells.append(nbformat.v4.new_code_cell('exercises.get("triton_update")'))
    notebook = nbformat.v4.new_notebook(cells=cells)
    page_questions.ask(notebook)
    nbformat.write(notebook, tmp_path / "idea.ipynb")
    return tmp_path


def asked(text):
    """Return the names of the questions whose boxes a text has."""
    found = re.findall('data-question="(.*?)"', text)
    return [json.loads(html.unescape(each))["name"] for each in found]


def test_a_chapter_has_a_box_below_each_exercise_that_pages_check(chapters):
    cells = [cell.source for cell in nbformat.read(chapters / "idea.ipynb", 4).cells]
    assert [asked(text) for text in cells] == [["latent-tokens"], [], [], ["register_ledger"], []]
    assert cells[1] == OTHER
    exercise, box, solution = (cells[0].index(t) for t in ("{exercise}", "lab-ask", "{solution-"))
    assert exercise < box < solution


def test_a_page_has_the_question_of_a_chapter_without_the_call(chapters):
    text = page_questions.placed("a\n<!-- question: latent-tokens -->\nb", chapters)
    assert text.startswith("a\nHow many tokens?\n\n```{raw} html\n<div")
    assert text.endswith("```\nb")
    assert asked(text) == ["latent-tokens"]
    with pytest.raises(ValueError, match="question = 'other', allowed: mla-counts"):
        page_questions.placed("<!-- question: other -->", chapters)


def test_a_planted_bug_is_asked_with_what_the_verdict_says(chapters):
    text = page_questions.placed("<!-- question: planted_bug -->", chapters)
    assert "BUG: " in text
    assert "keys of score 0" in text
    assert max(map(len, text.partition("```text")[2].partition("```")[0].splitlines())) <= 72


def test_progress_counts_every_question_and_names_the_chapters_that_ask(chapters):
    text = page_questions.placed("<!-- progress -->", chapters)
    assert text.endswith("- {doc}`/notebooks/idea`: 1")
    names = json.loads(html.unescape(re.search('data-names="(.*?)"', text)[1]))
    assert names == page_questions.every()


def test_a_box_holds_the_starter_of_an_assignment_and_no_solution(chapters):
    for name in page_assignments.names():
        text = html.unescape(page_questions.box(name))
        given = json.loads(re.search(r"""data-assignment="(.*?)"><p>""", text, re.DOTALL)[1])
        assert given["starter"] == exercises.get(name).starter
        assert solution(name) not in given.values()
    text = page_questions.placed("<!-- question: swizzle -->\n\n<!-- audit -->", chapters)
    assert 'data-lab-widget="assignment"' in text
    assert 'data-lab-widget="audit"' in text
