"""compute-sanitizer finds nothing in any CUDA kernel."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from labkernels.measure.resources import cuda_kernels
from tests.gpu import sanitize

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

SCRIPT = Path(sanitize.__file__)
KERNELS = {name: spec for name, spec in cuda_kernels().items() if spec.family in sanitize.RUNS}
# The tool, whether it looks at our kernels alone (initcheck must see what torch's own write), and
# what it says when there is nothing to say.
TOOLS = {
    "memcheck": (True, "ERROR SUMMARY: 0 errors"),
    "initcheck": (False, "ERROR SUMMARY: 0 errors"),
    "synccheck": (True, "ERROR SUMMARY: 0 errors"),
    "racecheck": (True, "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"),
}


def sanitizer():
    path = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    return path if Path(path).is_file() else None


@pytest.mark.skipif(sanitizer() is None, reason="compute-sanitizer is not on the PATH")
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_nothing_is_found(kernel, tool):
    filtered, nothing = TOOLS[tool]
    # the entry point is named for the family
    ours = ("--kernel-name", f"kernel_substring={KERNELS[kernel].family}")
    options = ours if filtered else ()
    done = subprocess.run(
        [sanitizer(), "--tool", tool, *options, sys.executable, str(SCRIPT), kernel],
        env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        capture_output=True,
        text=True,
    )
    said = done.stdout + done.stderr
    assert f"{kernel}: done" in said, said[-4000:]
    assert nothing in said, "\n".join(re.findall(r"=========.*", said)[:60])
    assert done.returncode == 0
