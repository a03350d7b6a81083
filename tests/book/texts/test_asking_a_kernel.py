"""The recipes of the page on probing one's own kernel, as far as a CPU can run them."""

import os
import re
import subprocess
import sys

import pytest
import torch

from labkernels.cli import probe as command
from tests.repo.files import ROOT

PAGE = (ROOT / "book/asking_a_kernel.md").read_text(encoding="utf-8")
TITLES = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
RUN = ("A function of torch", "A kernel in Triton")


def listing(title):
    """Return a section's Python listing, or None."""
    (text,) = re.findall(
        rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL
    )
    found = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return found[0] if found else None


def test_a_function_of_torch_has_no_defect(tmp_path):
    code = listing("A function of torch")
    arguments = code.partition("\n")[0].partition("labkernels ")[2].split()
    (tmp_path / "my_kernel.py").write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "labkernels", *arguments, "--quick"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no defect" in done.stdout


@pytest.mark.long
def test_the_kernel_in_triton_computes_attention(tmp_path):
    """Interpreted, the kernel is too slow for a whole datasheet."""
    (tmp_path / "my_triton.py").write_text(listing("A kernel in Triton"), encoding="utf-8")
    check = (
        "import torch, my_triton\n"
        "q, k, v = (torch.randn(2, h, n, 16).half() for h, n in ((4, 3), (2, 9), (2, 9)))\n"
        "exact = torch.nn.functional.scaled_dot_product_attention(\n"
        "    q.double(), k.double(), v.double(), enable_gqa=True)\n"
        "print(float((my_triton.attention(q, k, v).double() - exact).abs().max()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", check],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    # outputs below 4, rounded once to fp16
    assert float(done.stdout) <= 4 * torch.finfo(torch.float16).eps / 2


def test_recipes_name_options_that_exist_and_are_run_or_said_not_to_be():
    told = PAGE.partition("Those for ")[2].partition(" were written")[0]
    source = (ROOT / "labkernels/cli/probe/__init__.py").read_text(encoding="utf-8")
    recipes = {title: listing(title) for title in TITLES if listing(title)}
    assert set(RUN) < set(recipes)
    for title, code in recipes.items():
        assert title in RUN or title in told
        options = re.findall(r"--[a-z-]+", code.partition("\n")[0])
        assert options
        for option in options:
            assert option in command.DESCRIPTION or f'"{option}"' in source
