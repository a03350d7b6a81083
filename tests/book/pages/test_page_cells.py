"""A primer's page begins with its case, and no two hidden code cells follow each other."""

import chapter_frame
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


def test_hidden_code_without_output_joins_the_next_that_is_hidden():
    assert joined(code("a"), code("b"), code("c", shows=True)) == [["a", "b", "c"]]


def test_hidden_code_at_the_end_joins_the_one_before():
    assert joined(code("a", shows=True), code("b"), code("c", shows=True)) == [["a", "b"], ["c"]]


def test_what_is_seen_or_said_between_keeps_them_apart():
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


@pytest.mark.parametrize("chapter", chapter_frame.chapters(), ids=lambda chapter: chapter.file)
def test_programs_stand_above_the_foot_of_a_chapter(chapter):
    cells = [nbformat.v4.new_markdown_cell(text) for text in ("# Title", "The foot")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    page_cells.with_widgets(notebook, chapter)
    texts = [cell.source for cell in notebook.cells]
    assert texts[-1] == "The foot"
    found = "".join(texts).count('class="lab-widget"')
    assert found == len(chapter.widgets)
    if chapter.widgets:
        assert texts[1].startswith("## In this page")


def test_a_program_is_offered_for_the_kernel_that_the_chapter_names():
    chapter = next(c for c in chapter_frame.chapters() if c.file == "half_idle_tensor_cores")
    cells = [nbformat.v4.new_markdown_cell(text) for text in ("# Title", "The foot")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    page_cells.with_widgets(notebook, chapter)
    assert 'data-kernel="prefill_wgmma"' in notebook.cells[1].source
