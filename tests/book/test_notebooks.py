"""Each notebook is a pair: a percent script, and the executed notebook in plain Markdown."""

import re

import jupytext
import nbformat
import notebook_io
import plain
import pytest

from tests.repo.files import ROOT

SOURCES = sorted(p for p in (ROOT / "notebooks").glob("*.py") if not p.name.startswith("_"))
CODE_CELL_LINES_MAX = 15
MYST = re.compile(r"\{[\w:-]+\}`|^[`:]{3}\{|^\$\$ \(", re.MULTILINE)


def code(path):
    """Return the code cells, without those that a reader fills in."""
    found = [cell for cell in jupytext.read(path).cells if cell.cell_type == "code"]
    return [cell for cell in found if plain.ANSWER not in cell.metadata.get("tags", ())]


@pytest.fixture(params=SOURCES, ids=lambda path: path.stem)
def source(request):
    return request.param


def test_notebook_is_its_script_in_plain_markdown(source):
    script, notebook = jupytext.read(source), jupytext.read(source.with_suffix(".ipynb"))
    in_script = [cell for cell in script.cells if cell.cell_type == "code"]
    for cell, executed in zip(in_script, code(source.with_suffix(".ipynb")), strict=False):
        cell.outputs = executed.outputs
    expected = plain.plain(script, source.stem).cells
    for i, (wanted, found) in enumerate(zip(expected, notebook.cells, strict=False), 1):
        same = (wanted.source, wanted.metadata) == (found.source, found.metadata)
        assert same, f"cell {i} differs: edit the .py, then `make notebooks`"
    assert len(expected) == len(notebook.cells), "`make notebooks` writes the .ipynb anew"


def test_notebook_was_run_from_top_to_bottom_without_a_warning(source):
    notebook = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    text = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    assert [found[0] for found in map(MYST.search, text) if found] == [], "what only MyST reads"
    executed = code(source.with_suffix(".ipynb"))
    counts = [cell.execution_count for cell in executed if cell.source.strip()]
    assert counts == list(range(1, len(counts) + 1))
    outputs = [output for cell in executed for output in cell.outputs]
    assert [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"] == []
    ids = [cell.id for cell in notebook.cells]
    assert len(ids) == len(set(ids))
    assert not [cell.id for cell in notebook.cells if "execution" in cell.metadata], "times"


def test_script_names_its_kernel_and_has_short_cells(source):
    script = jupytext.read(source)
    kernelspec = script.metadata.get("kernelspec", {})
    assert kernelspec.get("name") == "python3", "the header needs a kernelspec to be executed"
    sizes = [len(cell.source.splitlines()) for cell in code(source)]
    assert max(sizes) <= CODE_CELL_LINES_MAX, "longer logic belongs in labkernels"


def test_every_notebook_has_a_source():
    orphans = {p.stem for p in (ROOT / "notebooks").glob("*.ipynb")} - {p.stem for p in SOURCES}
    assert not orphans


def test_a_notebook_first_installs_the_lab_where_it_is_missing(source):
    if source.stem == "architecture":
        pytest.skip("it draws the checkout, which no wheel holds")
    found, template = code(source)[0], code(source.with_name("_template.py"))[0]
    assert "pip" in template.source
    assert (found.source, found.metadata) == (template.source, template.metadata)


def test_a_page_keeps_no_view_that_needs_a_kernel():
    data = {"text/html": "<p>words</p>", notebook_io.WIDGET: {"model_id": "1"}}
    output = nbformat.v4.new_output("execute_result", data)
    cell = nbformat.v4.new_code_cell("budget()", outputs=[output])
    kept = notebook_io.without_live_widgets(nbformat.v4.new_notebook(cells=[cell]))
    assert set(kept.cells[0].outputs[0].data) == {"text/html"}
