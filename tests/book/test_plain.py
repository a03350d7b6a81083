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


def test_roles_become_links_with_words():
    found = text("")
    assert f'[split]({plain.plain_roles.published()}book/glossary.html "' in found
    assert f"[Notation]({plain.plain_roles.published()}book/notation.html)" in found
    assert "[Dao (2024)](https://arxiv.org/abs/2307.08691)" in found
    assert (
        "([Fasi et al., 2021](https://doi.org/10.7717/peerj-cs.330); [Dao et al., 2022](" in found
    )


def test_equations_and_figures_have_numbers():
    found = text("")
    assert "c = d\n\\tag{2}\n$$" in found
    assert "By (2), equation (" in found
    assert "(tensor_cores_on_and_off.ipynb) and Figure 1." in found


def test_a_sentence_does_not_begin_with_a_small_letter():
    assert "\nEquation (" in text("One.\n# {eq}`decode-least-time` says it.")


def test_a_figure_is_followed_by_its_caption():
    figure = 'mystnb={"figure": {"name": "a-figure", "caption": "A claim."}}'
    drawn, caption = cells(code=f'\n# %% tags=["hide-input"] {figure}\n1')[1:]
    assert drawn.metadata["jupyter"] == {"source_hidden": True}
    assert (drawn.metadata["cellView"], drawn.source) == ("form", "# @title Code of figure 1\n1")
    assert caption.source == "**Figure 1.** A claim."


def test_a_listing_has_the_lines_of_its_source():
    path = "/labkernels/kernels/decode/mma/kernel.cuh"
    options = ':language: cpp\n# :start-after: "[lab: scores]"\n# :end-before: "[/lab: scores]"'
    found = plain.plain(
        jupytext.reads(
            f"# %% [markdown]\n# ```{{literalinclude}} {path}\n# {options}\n# ```", "py"
        ),
        "an_idea",
    )
    listing = found.cells[0].source
    source = (plain.ROOT / path[1:]).read_text().split("[lab: scores]\n")[1]
    assert listing.startswith("```c++\n")
    assert listing.split("\n")[1] == source.split("\n")[0]
    assert listing.endswith(f"```\n\n[{path[1:]}](..{path})")


def test_a_listing_does_not_show_where_another_begins():
    script = """# %% [markdown]
# ```{literalinclude} /labkernels/kernels/prefill/wgmma/consumer.cuh
# :language: cpp
# :start-at: "  // Computes the next block's scores beside"
# :end-before: "  // ---- softmax"
# ```"""
    listing = plain.plain(jupytext.reads(script, "py"), "an_idea").cells[0].source
    assert "PingPong<C>::wait(warpgroup);" in listing
    assert "[lab:" not in listing
    assert "[/lab:" not in listing


def test_a_solution_is_folded_below_its_heading():
    script = """\
# %% [markdown]
# ```{exercise}
# :label: an-exercise
#
# How many?
# ```
#
# ```{solution-start} an-exercise
# :class: dropdown
# ```
#
# Two.

# %%
assert 1 + 1 == 2

# %% [markdown]
# ```{solution-end}
# ```
#
# ## Sources
"""
    found = plain.plain(jupytext.reads(script, "py:percent"), "an_idea").cells
    sources = [
        "### Exercise 1\n\nHow many?",
        "#### Solution",
        "Two.",
        "assert 1 + 1 == 2",
        "## Sources",
    ]
    assert [cell.source for cell in found] == sources
    assert [cell.metadata for cell in found][1] == {"jp-MarkdownHeadingCollapsed": True}


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


def test_an_answer_in_cuda_begins_with_the_starter():
    script = EXERCISE.format(name="rescale")
    yours = plain.plain(jupytext.reads(script, "py:percent"), "an_idea").cells[0]
    *lines, check = yours.source.splitlines()
    given = {}
    exec("\n".join(lines), given)
    assert given["answer"].strip() == exercises.get("rescale").starter.strip()
    assert check == 'exercises.check("rescale", answer)'


@pytest.mark.parametrize("term", ["GQA", "online softmax", "verdict", "launch bounds"])
def test_the_tooltip_of_a_term_has_bare_words(term):
    found = re.search(r'"(.*)"\)', text(f"{{term}}`{term}`").splitlines()[-1])
    assert not re.search(r"[$`{}]|\w+\d{4}|how_to", found[1])
    assert found[1].endswith(".")


def test_a_comment_that_begins_folded_code_is_its_title():
    script = '# %% tags=["hide-input"]\n# Draws.\n1\n\n# %%\n# Counts.\n'
    first, second = plain.plain(jupytext.reads(script, "py:percent"), "an_idea").cells
    assert [first.source, second.source] == ["# @title Draws.\n1", "# Counts."]


def test_a_magic_stays_in_the_first_line_and_shown_code_as_it_is():
    script = '# %% tags=["hide-input"]\n# %%time\n1\n\n# %%\n2'
    hidden, shown = plain.plain(jupytext.reads(script, "py:percent"), "an_idea").cells
    assert hidden.source == "%%time\n1"
    assert (shown.source, "cellView" in shown.metadata) == ("2", False)


@pytest.mark.parametrize("rest", ["{ref}`there`", "{nothing}`at all`"])
def test_an_unknown_role_is_named(rest):
    with pytest.raises(ValueError, match="knows no role"):
        text(rest)


def test_an_unknown_directive_is_named():
    with pytest.raises(ValueError, match="knows no directive margin"):
        text("\n# ```{margin}\n# aside\n# ```")


def test_glued_numbers_stand_in_the_text():
    notebook = jupytext.reads(
        "# %% [markdown]\n# It is {glue:text}`ratio`.\n\n# %%\n1", "py:percent"
    )
    data = {"application/papermill.record/text/plain": "'1.25'"}
    output = nbformat.v4.new_output("display_data", data, metadata={"scrapbook": {"name": "ratio"}})
    notebook.cells[1].outputs = [output]
    assert plain.plain(notebook, "an_idea").cells[0].source == "It is 1.25."


def test_a_moving_picture_is_left_in_words():
    notebook = jupytext.reads("# %%\n1", "py:percent")
    data = {"text/html": '<div class="lab-motion"><svg></svg></div>', "text/plain": "It moves."}
    notebook.cells[0].outputs = [nbformat.v4.new_output("execute_result", data)]
    (found,) = plain.plain(notebook, "an_idea").cells[0].outputs
    assert found.data == {"text/plain": "It moves."}


@pytest.mark.parametrize(
    ("tag", "box"), [("hide-cell", True), ("hide-output", True), ("hide-input", False)]
)
def test_an_output_below_a_lid_stands_in_a_box_that_scrolls(tag, box):
    notebook = jupytext.reads(f'# %% tags=["{tag}"]\n1', "py:percent")
    notebook.cells[0].outputs = [nbformat.v4.new_output("execute_result", {"text/plain": "1"})]
    found = plain.plain(notebook, "an_idea").cells[0].metadata
    assert found.get("scrolled", False) == box
    assert "outputs_hidden" not in found.get("jupyter", {})


def test_numbers_that_stand_in_the_text_stay_below_their_lid():
    notebook = jupytext.reads('# %% tags=["hide-cell"]\n1', "py:percent")
    glued = {"scrapbook": {"name": "ratio"}}
    outputs = [nbformat.v4.new_output("display_data", {"text/plain": "1"}, metadata=glued)]
    notebook.cells[0].outputs = outputs
    found = plain.plain(notebook, "an_idea").cells[0].metadata
    assert found["jupyter"] == {"source_hidden": True, "outputs_hidden": True}


def test_a_form_is_left_in_words_that_say_where_it_is():
    notebook = jupytext.reads("# %%\nwidgets.run_kernel()", "py:percent")
    output = nbformat.v4.new_output("execute_result", widgets.budget()._repr_mimebundle_())
    notebook.cells[0].outputs = [output]
    (found,) = plain.plain(notebook, "an_idea").cells[0].outputs
    assert "text/html" not in found.data
    assert found.data["text/plain"].endswith("takes. In JupyterLab, run this cell to see it here.")
