"""The first launch on the CPU machine does not depend on what its memory held before."""

import os
import subprocess
import sys

from tests.repo.files import ROOT

CODE = """
import numpy as np
from labkernels.chapters.primers import machine, small_product
from labkernels.cuda.host import build

kernel = machine._built("small_product.cuh", small_product.instance(8, 2), (machine.FOLDER,))
build._load_entry(kernel.library, kernel.runtime)
dirt = [np.full(n, -1, np.int8) for n in range(8192, 1 << 20, 8192)]
del dirt
small_product.multiply(np.zeros((96, 128)), np.zeros((96, 8)), stages=2)
print("right")
"""


def test_the_first_launch_reports_no_race_that_is_none():
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "right\n", done.stderr[-500:]
