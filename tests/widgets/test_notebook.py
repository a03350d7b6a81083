"""JupyterLab shows the widgets of the pages, whose data the kernel of the notebook gives."""

import importlib.util
import json
import subprocess

import pytest

from labkernels import widgets
from labkernels.widgets import kernels, ledgers, program

WORDS = {"text/plain", "text/html"}
VIEW = "application/vnd.jupyter.widget-view+json"


def test_module_of_a_notebook_has_what_anywidget_calls(needs_node, tmp_path):
    module = tmp_path / "lab.mjs"
    module.write_text(program.module(kernels.offers()))
    text = f"import lab from {json.dumps(module.as_uri())}; console.log(typeof lab.render)"
    command = ["node", "--input-type=module", "-e", text]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.stdout == "function\n", answer.stderr


@pytest.fixture
def notebook():
    pytest.importorskip("anywidget")
    from labkernels.widgets import notebook

    return notebook


def test_a_notebook_has_the_widget_where_anywidget_is_and_else_the_words(notebook, monkeypatch):
    assert set(widgets.budget("prefill_mma")._repr_mimebundle_()) == {*WORDS, VIEW}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    bundle = widgets.budget("prefill_mma")._repr_mimebundle_()
    assert set(bundle) == WORDS
    assert "prefill_mma" in bundle["text/plain"]


def test_kernel_of_the_notebook_answers_with_the_budget(notebook, monkeypatch):
    sent = []
    live = notebook.Live("budget", "decode_mma")
    monkeypatch.setattr(live, "send", sent.append)
    live._answer(live, {"asset": "budget"}, None)
    assert json.loads(sent[0]["text"]) == json.loads(json.dumps(ledgers.data()))
    live._answer(live, {"asset": "other"}, None)
    said, known = sent[1]["error"].split(", allowed: ")
    assert said.endswith("asset = 'other'")
    assert {"budget", "bits"} <= set(known.split(", "))
