"""Slides: what they show of a chapter, and that they need no network."""

import re

import nbformat
import slides


def test_slides_show_first_sentences_and_no_solution():
    text = "# A\n\nOne. Two.\n\n## You need\n\nMuch.\n\n## B\n\n$$\nx\n\n=y\n$$"
    text += "\n\n#### Solution\n\nSecret."
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)])
    found = [(c.metadata["slideshow"]["slide_type"], c.source) for c in slides.deck(notebook).cells]
    assert found == [
        ("slide", "# A"),
        ("-", "- One."),
        ("notes", "One. Two."),
        ("slide", "## B"),
        ("-", "$$\nx\n\n=y\n$$"),
    ]


def test_an_item_of_a_list_is_shown_whole_wherever_its_number_begins():
    item = nbformat.v4.new_markdown_cell("7. **A.** B.\n   C.")
    notebook = nbformat.v4.new_notebook(cells=[item])
    assert [cell.source for cell in slides.deck(notebook).cells] == ["7. **A.** B.\n   C."]


def test_a_comment_is_no_heading_and_a_heading_below_a_heading_is_shown():
    new = nbformat.v4
    printed = new.new_output("stream", text="a")
    figure = new.new_code_cell("# @title Code of figure 1\nplot()", outputs=[printed])
    text = new.new_markdown_cell("## A\n\n### B\n\nOne.")
    deck = slides.deck(new.new_notebook(cells=[text, figure]))
    kinds = [cell.metadata["slideshow"]["slide_type"] for cell in deck.cells]
    assert kinds == ["slide", "-", "-", "notes", "-"]


def test_a_caption_stays_with_its_figure_and_an_exercise_is_whole():
    new = nbformat.v4
    image = new.new_output("display_data", data={"image/png": ""})
    below = "**Figure 1.** A claim.\n\n### Exercise 1\n\nHere is a GPU.\nHow many?"
    cells = [
        new.new_markdown_cell("## A\n\nOne."),
        new.new_code_cell("plot()", outputs=[image]),
        new.new_markdown_cell(below),
    ]
    found = slides.deck(new.new_notebook(cells=cells)).cells
    kinds = [cell.metadata["slideshow"]["slide_type"] for cell in found]
    assert kinds[3:5] == ["subslide", "-"]
    assert found[6].source == "- Here is a GPU. How many?"


def test_slides_load_nothing_from_the_network():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# A\n\n$x$.")])
    page = slides.html(slides.deck(notebook))
    loaded = re.findall(r"""(?:src|<link[^>]*href)=["']([^"']+)""", page)
    assert {"reveal/dist/reveal.js", "reveal/dist/reveal.css", slides.MATHJAX} <= set(loaded)
    assert not [address for address in loaded if "//" in address]
