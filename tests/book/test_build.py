"""What build.py promises: this interpreter's kernel, the cell's error, no page from the network."""

import sys

import build
import notebook_io
import pytest

SCRIPT = """\
# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %%
import sys
sys.executable

# %%
{last_cell}
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    for name in ("JUPYTER_PATH", "IPYTHONDIR", "PYTHONPATH"):
        monkeypatch.setenv(name, "")

    def execute(last_cell):
        source = tmp_path / "idea.py"
        source.write_text(SCRIPT.format(last_cell=last_cell))
        return notebook_io.execute(source, scratch=tmp_path / "scratch")

    return execute


def test_cells_run_in_this_interpreter_with_labkernels(run):
    notebook = run("import labkernels")
    assert notebook.cells[0].outputs[0].data["text/plain"] == repr(sys.executable)


def test_a_failing_cell_stops_the_build_with_its_error(run):
    with pytest.raises(SystemExit, match=r"(?s)notebooks/idea\.py.*no such tile: 7"):
        run("raise ValueError('no such tile: 7')")


@pytest.mark.parametrize(
    ("name", "matters"),
    [
        ("labkernels/kernels/decode_mma/kernel.cuh", True),
        ("labkernels/hardware/gpus.toml", True),
        ("data/decode_tensor_cores.csv", True),
        ("labkernels/__pycache__/units.pyc", False),
        ("README.md", False),
    ],
)
def test_a_change_of_kernels_or_data_changes_the_digest(tmp_path, monkeypatch, name, matters):
    monkeypatch.setattr(notebook_io, "ROOT", tmp_path)
    before = notebook_io.input_digest()
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("changed")
    assert (notebook_io.input_digest() != before) == matters


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example/x.js"></script>',
        "<script async src='//cdn.example/x.js'>",
        '<link rel="stylesheet" href="https://fonts.example/a.css">',
        '<img alt="a" src="http://pictures.example/a.png">',
    ],
)
def test_network_tags_are_found(tmp_path, text):
    (tmp_path / "page.html").write_text(f"<p>before</p>\n{text}")
    assert build.network_uses(tmp_path)


def test_links_and_local_files_are_no_network_use(tmp_path):
    page = '<script src="../_static/x.js"></script><a href="https://arxiv.org/abs/1805.02867">a</a>'
    (tmp_path / "page.html").write_text(page)
    (tmp_path / "a.css").write_text("@import 'basic.css'; body { background: url('a.png') }")
    assert build.network_uses(tmp_path) == []
    (tmp_path / "b.css").write_text("@import 'https://fonts.example/a.css';")
    assert build.network_uses(tmp_path)
