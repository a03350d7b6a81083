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


def test_slides_load_nothing_from_the_network():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# A\n\n$x$.")])
    page = slides.html(slides.deck(notebook))
    loaded = re.findall(r"""(?:src|<link[^>]*href)=["']([^"']+)""", page)
    assert {"reveal/dist/reveal.js", "reveal/dist/reveal.css", slides.MATHJAX} <= set(loaded)
    assert not [address for address in loaded if "//" in address]
