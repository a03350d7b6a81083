"""A chapter without MyST keeps its links, numbers, listings, captions and folded parts."""

import re

import jupytext
import nbformat
import plain
import pytest

from labkernels import widgets
from labkernels.chapters import exercises

MARKDOWN = """\
# %% [markdown]
# # A title
#
# The {{term}}`split <split-KV>` of {{doc}}`/book/notation`.
# As {{cite:t}}`dao2024` says {{cite:p}}`fasi2021,dao2022`.
#
# $$
# a = b
# $$ (first)
#
# $$
# c = d
# $$ (second)
#
# By {{eq}}`second`, {{eq}}`decode-least-time` and {{numref}}`a-figure`.
# {rest}
"""


def cells(rest="", code=""):
    notebook = jupytext.reads(MARKDOWN.format(rest=rest) + code, fmt="py:percent")
    return plain.plain(notebook, "an_idea").cells


def text(rest):
    code = '\n# %% mystnb={"figure": {"name": "a-figure", "caption": "A claim."}}\n1\n'
    return cells(rest, code)[0].source


def test_roles_become_links_with_words_and_figures_and_equations_have_numbers():
    found = text("")
    for words in (
        f'[split]({plain.plain_roles.published()}book/glossary.html "',
        f"[Notation]({plain.plain_roles.published()}book/notation.html)",
        "[Dao (2024)](https://arxiv.org/abs/2307.08691)",
        "([Fasi et al., 2021](https://doi.org/10.7717/peerj-cs.330); [Dao et al., 2022](",
        "c = d\n\\tag{2}\n$$",
        "By (2), equation (",
        "(tensor_cores_on_and_off.ipynb) and Figure 1.",
    ):
        assert words in found
    assert "\nEquation (" in text("One.\n# {eq}`decode-least-time` says it.")


def test_a_figure_is_followed_by_its_caption():
    figure = 'mystnb={"figure": {"name": "a-figure", "caption": "A claim."}}'
    drawn, caption = cells(code=f'\n# %% tags=["hide-input"] {figure}\n1')[1:]
    assert drawn.metadata["jupyter"] == {"source_hidden": True}
    assert (drawn.metadata["cellView"], drawn.source) == ("form", "# @title Code of figure 1\n1")
    assert caption.source == "**Figure 1.** A claim."


def listing(path, *options):
    lines = "".join(f"# {option}\n" for option in (":language: cpp", *options))
    script = f"# %% [markdown]\n# ```{{literalinclude}} {path}\n{lines}# ```"
    return plain.plain(jupytext.reads(script, "py"), "an_idea").cells[0].source


def test_a_listing_has_the_lines_of_its_source_but_not_where_another_begins():
    path = "/labkernels/kernels/decode/mma/kernel.cuh"
    found = listing(path, ':start-after: "[lab: scores]"', ':end-before: "[/lab: scores]"')
    source = (plain.ROOT / path[1:]).read_text().split("[lab: scores]\n")[1]
    assert found.startswith("```c++\n")
    assert found.split("\n")[1] == source.split("\n")[0]
    assert found.endswith(f"```\n\n[{path[1:]}](..{path})")
    found = listing(
        "/labkernels/kernels/prefill/wgmma/consumer.cuh",
        ':start-at: "  // Computes the next block\'s scores beside"',
        ':end-before: "  // ---- softmax"',
    )
    assert "PingPong<C>::wait(warpgroup);" in found
    assert not re.search(r"\[/?lab:", found)


def test_a_solution_is_folded_below_its_heading():
    script = "# %% [markdown]\n# ```{exercise}\n# :label: an-exercise\n#\n# How many?\n# ```\n#\n"
    script += "# ```{solution-start} an-exercise\n# :class: dropdown\n# ```\n#\n# Two.\n\n"
    script += "# %%\nassert 1 + 1 == 2\n\n"
    script += "# %% [markdown]\n# ```{solution-end}\n# ```\n#\n# ## Sources\n"
    found = plain.plain(jupytext.reads(script, "py:percent"), "an_idea").cells
    exercise, solution = "### Exercise 1\n\nHow many?", "#### Solution"
    sources = [exercise, solution, "Two.", "assert 1 + 1 == 2", "## Sources"]
    assert [cell.source for cell in found] == sources
    assert found[1].metadata == {"jp-MarkdownHeadingCollapsed": True}


EXERCISE = """\
# %% [markdown]
# ```{{solution-start}} an-exercise
# :class: dropdown
# ```

# %%
found = exercises.check(
    "{name}", 1
)

# %% [markdown]
# ```{{solution-end}}
# ```
"""


@pytest.mark.parametrize(
    ("name", "answer", "said"),
    [
        ("roads-chance", None, "There is no answer yet"),
        ("register_ledger", 0, "This is still the starter"),
        ("occupancy_choice", "0, 0, 0", "Not yet"),
    ],
)
def test_a_reader_has_a_cell_to_answer_in_before_the_solution(name, answer, said):
    script = EXERCISE.format(name=name)
    yours, solution = plain.plain(jupytext.reads(script, "py:percent"), "an_idea").cells[:2]
    assert (solution.source, yours.metadata.tags) == ("#### Solution", [plain.ANSWER])
    *lines, check = yours.source.splitlines()
    given = {"exercises": exercises}
    exec("\n".join(lines), given)
    assert given["answer"] == answer
    assert said in repr(eval(check, given))


def test_folded_code_begins_with_its_title_or_its_magic_and_shown_code_stays_as_it_is():
    script = '# %% tags=["hide-input"]\n# Draws.\n1\n\n# %%\n# Counts.\n'
    script += '\n# %% tags=["hide-input"]\n# %%time\n1\n\n# %%\n2'
    found = plain.plain(jupytext.reads(script, "py:percent"), "an_idea").cells
    sources = ["# @title Draws.\n1", "# Counts.", "%%time\n1", "2"]
    assert [cell.source for cell in found] == sources
    assert "cellView" not in found[-1].metadata


@pytest.mark.parametrize(
    ("rest", "told"),
    [
        ("{ref}`there`", "knows no role"),
        ("{nothing}`at all`", "knows no role"),
        ("\n# ```{margin}\n# aside\n# ```", "knows no directive margin"),
    ],
)
def test_what_is_unknown_is_named(rest, told):
    with pytest.raises(ValueError, match=told):
        text(rest)


def shown(script, *data, **metadata):
    """Return a script's plain cells, the last of which has shown data."""
    notebook = jupytext.reads(script, "py:percent")
    new = nbformat.v4.new_output
    notebook.cells[-1].outputs = [new("display_data", each, metadata=metadata) for each in data]
    return plain.plain(notebook, "an_idea").cells


GLUED = {"scrapbook": {"name": "ratio"}}


def test_glued_numbers_stand_in_the_text_and_below_their_lid():
    script = "# %% [markdown]\n# It is {glue:text}`ratio`.\n\n# %%\n1"
    first, _ = shown(script, {"application/papermill.record/text/plain": "'1.25'"}, **GLUED)
    assert first.source == "It is 1.25."
    (found,) = shown('# %% tags=["hide-cell"]\n1', {"text/plain": "1"}, **GLUED)
    assert found.metadata["jupyter"] == {"source_hidden": True, "outputs_hidden": True}


@pytest.mark.parametrize(
    ("tag", "box"), [("hide-cell", True), ("hide-output", True), ("hide-input", False)]
)
def test_an_output_below_a_lid_stands_in_a_box_that_scrolls(tag, box):
    (found,) = shown(f'# %% tags=["{tag}"]\n1', {"text/plain": "1"})
    assert found.metadata.get("scrolled", False) == box
    assert "outputs_hidden" not in found.metadata.get("jupyter", {})


def test_what_moves_and_a_form_are_left_in_words():
    moving = {"text/html": '<div class="lab-motion"><svg></svg></div>', "text/plain": "It moves."}
    (cell,) = shown("# %%\nwidgets.run_kernel()", moving, widgets.budget()._repr_mimebundle_())
    motion, form = (output.data for output in cell.outputs)
    assert motion == {"text/plain": "It moves."}
    assert "text/html" not in form
    assert form["text/plain"].endswith("takes. In JupyterLab, run this cell to see it here.")
