"""Each notebook is a pair: a percent script, and the same cells executed."""

from pathlib import Path

import jupytext
import pytest

from tests.repo.files import ROOT

SOURCES = sorted(p for p in (ROOT / "notebooks").glob("*.py") if not p.name.startswith("_"))
KEPT_METADATA = {"tags", "mystnb"}
CODE_CELL_LINES_MAX = 15


def cells(path):
    return [
        (
            cell.cell_type,
            cell.source,
            {k: v for k, v in cell.metadata.items() if k in KEPT_METADATA},
        )
        for cell in jupytext.read(path).cells
    ]


@pytest.fixture(params=SOURCES, ids=lambda path: path.stem)
def source(request):
    return request.param


def test_pair_has_equal_cells(source):
    in_script = cells(source)
    in_notebook = cells(source.with_suffix(".ipynb"))
    for i, (script, notebook) in enumerate(zip(in_script, in_notebook, strict=False), 1):
        assert script == notebook, f"cell {i} differs: edit the .py, then `make notebooks`"
    assert len(in_script) == len(in_notebook), "`make notebooks` writes the .ipynb anew"


def test_notebook_was_run_from_top_to_bottom(source):
    code = [c for c in jupytext.read(source.with_suffix(".ipynb")).cells if c.cell_type == "code"]
    counts = [cell.execution_count for cell in code if cell.source.strip()]
    assert counts == list(range(1, len(counts) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert not [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"]


def test_notebook_keeps_no_times_and_unique_ids(source):
    notebook = jupytext.read(source.with_suffix(".ipynb"))
    ids = [cell.id for cell in notebook.cells]
    assert len(ids) == len(set(ids))
    assert not [cell.id for cell in notebook.cells if "execution" in cell.metadata]


def test_script_names_its_kernel(source):
    kernelspec = jupytext.read(source).metadata.get("kernelspec", {})
    assert kernelspec.get("name") == "python3", "the header needs a kernelspec to be executed"


def test_code_cells_are_short(source):
    for i, (kind, text, _) in enumerate(cells(source), 1):
        n_lines = len(text.splitlines())
        short = kind != "code" or n_lines <= CODE_CELL_LINES_MAX
        assert short, f"cell {i} has {n_lines} lines: longer logic belongs in labkernels"


def test_every_notebook_has_a_source():
    orphans = {p.stem for p in Path(ROOT / "notebooks").glob("*.ipynb")} - {p.stem for p in SOURCES}
    assert not orphans
