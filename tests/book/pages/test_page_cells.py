"""A page begins with its case, hides code in one cell, and its guesses lie on their sliders."""

from pathlib import Path

import chapter_frame
import guesses
import nbformat
import page_cells
import pytest

HIDE = {"tags": ["hide-input"]}
WITH_CASE = [chapter for chapter in chapter_frame.chapters() if chapter.case]


def code(source, *, shows=False, hidden=True):
    outputs = [nbformat.v4.new_output("stream", text="1")] if shows else []
    metadata = HIDE if hidden else {}
    return nbformat.v4.new_code_cell(source, outputs=outputs, metadata=metadata)


def joined(*cells):
    notebook = nbformat.v4.new_notebook(cells=list(cells))
    page_cells.without_stubs(notebook)
    return [cell.source.split() for cell in notebook.cells]


def test_hidden_code_without_output_joins_what_is_hidden_beside_it():
    assert joined(code("a"), code("b"), code("c", shows=True)) == [["a", "b", "c"]]
    assert joined(code("a", shows=True), code("b"), code("c", shows=True)) == [["a", "b"], ["c"]]
    text = nbformat.v4.new_markdown_cell("words")
    assert joined(code("a"), text, code("b")) == [["a"], ["words"], ["b"]]
    assert joined(code("a"), code("b", hidden=False)) == [["a"], ["b"]]


@pytest.mark.parametrize("chapter", WITH_CASE, ids=lambda chapter: chapter.file)
def test_case_stands_between_the_title_and_the_frame(chapter):
    cell = nbformat.v4.new_markdown_cell("# Title\n\n## Question")
    notebook = chapter_frame.framed(nbformat.v4.new_notebook(cells=[cell]), chapter.file)
    page_cells.with_case(notebook, chapter)
    text = notebook.cells[0].source
    assert text.startswith("# Title\n")
    assert text.index("lab-case") < text.index("{admonition}") < text.index("## Question")
    assert 2 <= text.count("<li>") <= 4
    assert chapter.case["asked"].endswith("?")


def test_a_moving_picture_comes_from_the_chapter_that_a_page_names(tmp_path):
    shown = '<div class="lab-motion">moves</div>'
    output = nbformat.v4.new_output("execute_result", {"text/html": shown})
    cell = nbformat.v4.new_code_cell("", outputs=[output])
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "idea.ipynb")
    text = page_cells.with_motion("a\n<!-- motion: idea -->\nb", tmp_path)
    assert text == f"a\n```{{raw}} html\n{shown}\n```\nb"
    with pytest.raises(ValueError, match="other has no moving picture"):
        page_cells.with_motion("<!-- motion: other -->", tmp_path)


def test_programs_stand_above_the_foot_of_a_chapter():
    for chapter in chapter_frame.chapters():
        cells = [nbformat.v4.new_markdown_cell(text) for text in ("# Title", "The foot")]
        notebook = nbformat.v4.new_notebook(cells=cells)
        page_cells.with_widgets(notebook, chapter)
        texts = [cell.source for cell in notebook.cells]
        assert texts[-1] == "The foot"
        assert "".join(texts).count('class="lab-widget"') == len(chapter.widgets)
        assert not chapter.widgets or texts[1].startswith("## In this page")
        if chapter.file == "half_idle_tensor_cores":
            assert 'data-kernel="prefill_wgmma"' in texts[1]


NOTEBOOKS = Path(__file__).parents[3] / "notebooks"
CASES = (
    "tensor_cores_on_and_off",
    "two_roads",
    "the_test_that_could_not_fail",
    "a_typo_that_looked_like_rounding",
    "half_idle_tensor_cores",
)


@pytest.mark.parametrize("name", guesses.GUESSES)
def test_every_answer_lies_on_its_slider_and_names_its_source(name):
    guess = guesses.GUESSES[name]()
    assert 0 < guess.truth < guess.most
    assert guess.source.startswith(("measured on NVIDIA", "from the CPU build"))
    assert f'data-truth="{guess.truth}"' in guess.html()


@pytest.mark.parametrize("chapter", CASES)
def test_every_case_asks_for_a_guess_before_it_measures(chapter):
    before, place, after = (NOTEBOOKS / f"{chapter}.py").read_text().partition("<!-- guess: ")
    assert place
    name = after.split()[0]
    assert guesses.GUESSES[name]().chapter == chapter
    assert "## Prediction" in before


def test_a_page_has_its_questions_and_no_link_to_itself():
    text = guesses.placed("a\n<!-- guess: equal_heads -->\nb", "two_roads")
    assert text.startswith("a\n```{raw} html\n<div")
    assert text.endswith("```\nb")
    assert "Why?" not in text
    assert "Why?" in guesses.placed("<!-- guess: equal_heads -->", "intro")
    with pytest.raises(ValueError, match="guess = 'other', allowed: decode_gain"):
        guesses.placed("<!-- guess: other -->")
