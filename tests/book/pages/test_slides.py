"""Slides show the first sentences of a chapter, and need no network."""

import re

import nbformat
import pytest
import slides


def deck(*cells):
    """Return the type and the source of each slide of cells; a text is a cell of Markdown."""
    made = [
        nbformat.v4.new_markdown_cell(cell) if isinstance(cell, str) else cell for cell in cells
    ]
    found = slides.deck(nbformat.v4.new_notebook(cells=made)).cells
    return [(cell.metadata["slideshow"]["slide_type"], cell.source) for cell in found]


def code(source, **shown):
    output = nbformat.v4.new_output("stream", text="a")
    return nbformat.v4.new_code_cell(source, **{"outputs": [output]} | shown)


def test_slides_show_first_sentences_and_no_solution():
    first = "A kernel is a function that many threads of a GPU run at once."
    text = f"# A\n\n{first} Two.\n\n## You need\n\nMuch.\n\n## B\n\n$$\nx\n\n=y\n$$"
    assert deck(text + "\n\n#### Solution\n\nSecret.") == [
        ("slide", "# A"),
        ("-", f"- {first}"),
        ("notes", f"{first} Two."),
        ("slide", "## B"),
        ("-", "$$\nx\n\n=y\n$$"),
    ]
    item = "7. **A.** B.\n   C."  # shown whole wherever its number begins
    assert deck(item) == [("-", item)]
    comment = deck("## A\n\n<!-- guess: a -->\n\n### B\n\nOne.")
    assert [source for _, source in comment] == ["## A", "### B", "- One.", "One."]


@pytest.mark.parametrize(
    ("cells", "kinds"),
    [
        (("## A\n\n### B\n\nOne.", code("# @title Code of figure 1\nplot()")), "slide - - notes -"),
        (("## A\n\nOne.", code("print()"), "Two.\n\n## B"), "slide - notes - - notes slide"),
        (
            (
                code("answer = None", outputs=[], metadata={"tags": ["your-answer"]}),
                "### Run it here\n\nThese kernels run in this page.",
                code("widgets.run_kernel()"),
            ),
            "",
        ),
    ],
    ids=["a comment is no heading", "a full slide", "what needs a browser or a reader"],
)
def test_cells_become_slides_and_notes(cells, kinds):
    assert " ".join(kind for kind, _ in deck(*cells)) == kinds


def test_a_caption_stays_with_its_figure_and_an_exercise_is_whole():
    image = nbformat.v4.new_output("display_data", data={"image/png": ""})
    below = "**Figure 1.** A claim.\n\n### Exercise 1\n\nHere is a GPU.\nHow many?"
    found = deck("## A\n\nOne.", code("plot()", outputs=[image]), below)
    assert [kind for kind, _ in found[:6]] == ["slide", "-", "notes", "-", "-", "subslide"]
    assert found[6][1] == "- Here is a GPU. How many?"


def test_a_sentence_that_asks_or_announces_takes_the_next_one_along():
    text = "Some words are C++ and not C. `auto&` gives the struct another name. No copy is made."
    asks = "Did any of these many rungs pay for its gain in speed with accuracy? No. All did well."
    shown = [source for kind, source in deck(f"## A\n\n{text}\n\n{asks}") if kind == "-"]
    assert shown[0].endswith("another name.")
    assert shown[1].endswith("accuracy? No.")


def test_slides_load_nothing_from_the_network():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# A\n\n$x$.")])
    page = slides.html(slides.deck(notebook))
    loaded = re.findall(r"""(?:src|<link[^>]*href)=["']([^"']+)""", page)
    assert {"reveal/dist/reveal.js", "reveal/dist/reveal.css", slides.MATHJAX} <= set(loaded)
    assert not [address for address in loaded if "//" in address]
