"""The script of the pages is whole; JupyterLab shows its widgets with the data of the kernel."""

import importlib.util
import json
import re
import shutil
import subprocess

import node
import page_widgets
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


def test_script_of_the_pages_is_one_program(needs_node, tmp_path):
    script = tmp_path / "lab.js"
    script.write_text(page_widgets.bundle(kernels.offers()))
    answer = subprocess.run(["node", "--check", script], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert not re.search(r"^(?:import \{|export\b)", script.read_text(), re.MULTILINE)


def test_types_of_the_modules_agree():
    if shutil.which("tsc") is None:
        pytest.skip("tsc, of the npm package typescript, is not installed")
    command = ["tsc", "--allowJs", "--checkJs", "--noEmit", "--strict", "--target", "es2022"]
    command += ["--module", "esnext", "--moduleResolution", "bundler"]
    command += ["--lib", "dom,dom.iterable,es2023"]
    files = [*program.modules(), node.PAGE / "bundle.d.ts"]
    files += [path for room in ("compile", "edit") for path in (node.PAGE / room).glob("*.mjs")]
    answer = subprocess.run([*command, *files], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout


@pytest.mark.parametrize("make", [widgets.run_kernel, widgets.step_kernel, widgets.budget])
def test_widget_says_in_words_what_stands_there(make):
    text = make("decode_fma")._repr_html_()
    assert 'data-kernel="decode_fma"' in text
    assert "decode_fma" in json.dumps(repr(make("decode_fma")))
