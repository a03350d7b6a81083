"""A machine without the NVIDIA compilers (a Mac, say) still has the budgets and the CPU kernels."""

import subprocess
import sys

import numpy as np

from labkernels.kernels.registry import discover
from tests.repo.files import ROOT

HIDE = """
import sys
for name in ("triton", "cuda", "cuda.core", "cuda.bindings", "cuda.pathfinder", "nvidia"):
    sys.modules[name] = None
"""


def run_hidden(code):
    return subprocess.run(
        [sys.executable, "-c", HIDE + code], cwd=ROOT, capture_output=True, text=True
    )


def test_floors_import_kernels_are_found_and_doctor_says_what_is_missing():
    floors = "cuda", "kernels", "ops", "measure", "experiments", "plots", "bench", "cli"
    imports = "".join(f"import labkernels.{floor}\n" for floor in floors)
    done = run_hidden(
        f"{imports}from labkernels.kernels.registry import discover\n"
        "print(len(discover()))\nlabkernels.cli.main(['doctor'])"
    )
    assert done.returncode == 0, done.stderr
    found, _, told = done.stdout.partition("\n")
    assert int(found) == len(discover())
    assert "triton" in told.lower()
    assert "cuda.bindings" in told.lower()


def test_a_report_without_the_plots_names_the_extra(tmp_path):
    path = tmp_path / "dump.npz"
    one = np.ones((1, 1, 64), np.float16)
    np.savez(path, q=one, out=one, k=one[None], v=one[None])
    done = run_hidden(
        "sys.modules['matplotlib'] = sys.modules['matplotlib.pyplot'] = None\n"
        "from labkernels.cli import main\n"
        f"sys.exit(main(['audit', {str(path)!r}, '--html', 'report.html']))"
    )
    assert done.returncode == 2
    *_, line = done.stderr.splitlines()
    assert "pip install 'labkernels[audit]'" in line
