"""The script of the pages is whole, and its types agree."""

import json
import re
import shutil
import subprocess

import node
import page_widgets
import pytest

from labkernels import widgets
from labkernels.widgets import kernels, program


def test_script_of_the_pages_is_one_program(needs_node, tmp_path):
    script = tmp_path / "lab.js"
    script.write_text(page_widgets.bundle(kernels.offers()))
    answer = subprocess.run(["node", "--check", script], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert not re.search(r"^(?:import|export)\b", script.read_text(), re.MULTILINE)


def test_types_of_the_modules_agree():
    if shutil.which("tsc") is None:
        pytest.skip("tsc, of the npm package typescript, is not installed")
    command = ["tsc", "--allowJs", "--checkJs", "--noEmit", "--strict", "--target", "es2022"]
    command += ["--module", "esnext", "--moduleResolution", "bundler"]
    command += ["--lib", "dom,dom.iterable,es2023"]
    files = [node.PAGE / f"{name}.mjs" for name in program.MODULES] + [node.PAGE / "bundle.d.ts"]
    answer = subprocess.run([*command, *files], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout


@pytest.mark.parametrize("make", [widgets.run_kernel, widgets.step_kernel, widgets.budget])
def test_widget_says_in_words_what_stands_there(make):
    text = make("decode_fma")._repr_html_()
    assert 'data-kernel="decode_fma"' in text
    assert "decode_fma" in json.dumps(repr(make("decode_fma")))
