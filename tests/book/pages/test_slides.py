"""Slides show the first sentences of a chapter, and need no network."""

import re

import nbformat
import slides


def test_slides_show_first_sentences_and_no_solution():
    first = "A kernel is a function that many threads of a GPU run at once."
    text = f"# A\n\n{first} Two.\n\n## You need\n\nMuch.\n\n## B\n\n$$\nx\n\n=y\n$$"
    text += "\n\n#### Solution\n\nSecret."
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)])
    found = [(c.metadata["slideshow"]["slide_type"], c.source) for c in slides.deck(notebook).cells]
    assert found == [
        ("slide", "# A"),
        ("-", f"- {first}"),
        ("notes", f"{first} Two."),
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
    assert kinds[:6] == ["slide", "-", "notes", "-", "-", "subslide"]
    assert found[6].source == "- Here is a GPU. How many?"


def kinds_and_sources(*cells):
    notebook = nbformat.v4.new_notebook(cells=list(cells))
    return [(c.metadata["slideshow"]["slide_type"], c.source) for c in slides.deck(notebook).cells]


def test_a_sentence_that_asks_or_announces_takes_the_next_one_along():
    text = (
        "Some words are C++ and not C. `auto&` gives the struct another name. A copy is not made."
    )
    longer = (
        "Did any of these many rungs pay for its gain in speed with accuracy? No. All did well."
    )
    found = kinds_and_sources(nbformat.v4.new_markdown_cell(f"## A\n\n{text}\n\n{longer}"))
    shown = [source for kind, source in found if kind == "-"]
    assert shown[0].endswith("another name.")
    assert shown[1].endswith("accuracy? No.")


def test_a_comment_makes_no_empty_slide():
    found = kinds_and_sources(
        nbformat.v4.new_markdown_cell("## A\n\n<!-- guess: a -->\n\n### B\n\nOne.")
    )
    assert [source for _, source in found] == ["## A", "### B", "- One.", "One."]


def test_a_last_sentence_stays_on_a_slide_that_is_full_and_its_notes_are_no_slide():
    new = nbformat.v4
    code = new.new_code_cell("print()", outputs=[new.new_output("stream", text="a")])
    found = kinds_and_sources(
        new.new_markdown_cell("## A\n\nOne."), code, new.new_markdown_cell("Two.\n\n## B")
    )
    kinds = [kind for kind, _ in found]
    assert kinds == ["slide", "-", "notes", "-", "-", "notes", "slide"]


def test_what_needs_a_browser_or_a_reader_is_no_slide():
    new = nbformat.v4
    yours = new.new_code_cell("answer = None", metadata={"tags": ["your-answer"]})
    text = new.new_markdown_cell("### Run it here\n\nThese kernels run in this page.")
    form = new.new_code_cell("widgets.run_kernel()", outputs=[new.new_output("stream", text="a")])
    assert kinds_and_sources(yours, text, form) == []


def test_slides_load_nothing_from_the_network():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# A\n\n$x$.")])
    page = slides.html(slides.deck(notebook))
    loaded = re.findall(r"""(?:src|<link[^>]*href)=["']([^"']+)""", page)
    assert {"reveal/dist/reveal.js", "reveal/dist/reveal.css", slides.MATHJAX} <= set(loaded)
    assert not [address for address in loaded if "//" in address]
