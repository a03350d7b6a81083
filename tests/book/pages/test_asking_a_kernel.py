"""The recipes of the page on probing one's own kernel, as far as a CPU can run them."""

import os
import re
import subprocess
import sys

import pytest

from tests.repo.files import ROOT

PAGE = (ROOT / "book/asking_a_kernel.md").read_text(encoding="utf-8")
RUN = ("A function of torch", "A kernel in Triton")


def recipe(title):
    """Return a section's Python listing, and the arguments that its first line gives."""
    (text,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    (listing,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    command = listing.partition("\n")[0]
    return listing, command.partition("labkernels ")[2].split()


@pytest.mark.parametrize("title", RUN)
def test_a_recipe_is_probed_without_a_defect(title, tmp_path):
    listing, command = recipe(title)
    (tmp_path / command[1].partition(":")[0]).write_text(listing, encoding="utf-8")
    quick = [] if "--quick" in command else ["--quick"]
    done = subprocess.run(
        [sys.executable, "-m", "labkernels", *command, *quick],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no defect" in done.stdout


def test_every_recipe_is_run_or_said_not_to_be():
    titles = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    told = PAGE.partition("Those for ")[2].partition(" were written")[0]
    for title in titles:
        if re.search(rf"^## {title}\n(?:(?!^## ).)*?```python", PAGE, re.MULTILINE | re.DOTALL):
            assert title in RUN or title in told
