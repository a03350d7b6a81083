"""A machine without the NVIDIA compilers (a Mac, say) still has the budgets and the CPU kernels."""

import subprocess
import sys

import numpy as np
import pytest

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


def test_floors_import_without_the_nvidia_compilers():
    floors = "cuda", "kernels", "ops", "measure", "experiments", "plots", "bench", "cli"
    done = run_hidden("".join(f"import labkernels.{floor}\n" for floor in floors))
    assert done.returncode == 0, done.stderr


def test_every_kernel_is_still_found_and_described():
    code = "from labkernels.kernels.registry import discover\nprint(len(discover()))"
    here = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    done = run_hidden(code)
    assert done.stdout == here.stdout, done.stderr
    assert int(done.stdout) > 0


def test_doctor_says_what_is_missing():
    done = run_hidden("from labkernels.cli import main\nmain(['doctor'])")
    assert done.returncode == 0, done.stderr
    for name in ("triton", "cuda.bindings"):
        assert name in done.stdout.lower()


@pytest.mark.long
def test_the_chapter_runs_without_the_nvidia_compilers():
    chapter = ROOT / "notebooks" / "tensor_cores_on_and_off.py"
    done = run_hidden(
        "import matplotlib.pyplot, runpy\n"
        "matplotlib.use('Agg')\n"
        "matplotlib.pyplot.show = matplotlib.pyplot.close\n"
        f"seen = runpy.run_path({str(chapter)!r})\n"
        "print(seen['resources'].nvrtc.available(), seen['result'].plan.machine)\n"
    )
    assert done.returncode == 0, done.stderr
    assert "CPU build" in done.stdout
    assert not done.stdout.splitlines()[-1].startswith("None"), "NVRTC was not hidden"


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
    (line,) = done.stderr.splitlines()
    assert "pip install 'labkernels[audit]'" in line
