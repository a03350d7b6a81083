"""compute-sanitizer finds nothing in any CUDA kernel."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels.contract import CUDA

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

SCRIPT = Path(__file__).with_name("sanitize.py")
# The tool, and what it says when there is nothing to say. Without a filter initcheck sees what
# torch's own kernels write; the others look at ours alone.
OURS = ("--kernel-name", "kernel_substring=decode")
TOOLS = {
    "memcheck": (OURS, "ERROR SUMMARY: 0 errors"),
    "initcheck": ((), "ERROR SUMMARY: 0 errors"),
    "synccheck": (OURS, "ERROR SUMMARY: 0 errors"),
    "racecheck": (OURS, "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"),
}


def sanitizer():
    path = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    return path if Path(path).is_file() else None


@pytest.mark.skipif(sanitizer() is None, reason="compute-sanitizer is not on the PATH")
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("kernel", CUDA)
def test_nothing_is_found(kernel, tool):
    options, nothing = TOOLS[tool]
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
