"""compute-sanitizer finds nothing in any CUDA kernel."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from labkernels.measure.resources import cuda_kernels
from tests.gpu.sanitizers import sanitize

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

SCRIPT = Path(sanitize.__file__)
KERNELS = cuda_kernels()
# tool: (whether it looks at our kernels alone, its words when it finds nothing). initcheck must
# also see what torch's kernels write.
TOOLS = {
    "memcheck": (True, "ERROR SUMMARY: 0 errors"),
    "initcheck": (False, "ERROR SUMMARY: 0 errors"),
    "synccheck": (True, "ERROR SUMMARY: 0 errors"),
    "racecheck": (True, "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"),
}


def sanitizer():
    path = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    return path if Path(path).is_file() else None


# Kernels in which racecheck reports races that do not exist: the functions that write, and those
# that read. racecheck does not follow one lane that arrives for its warp after a sync_warp, nor a
# warp that arrives at a named barrier without waiting there. For mla_wgmma's
# two warpgroups, racecheck reports the same when all their arrivals are replaced by waits. The CPU
# build's checker follows all of these and finds no race. At head_dim 256 racecheck names
# `backward`, the kernel, in place of the two functions that are inlined there.
NOT_FOLLOWED = {
    "backward_wgmma": ({"bulk_load"}, {"load_rows", "score_gradients", "backward"}),
    "mla_wgmma": ({"store_p", "store"}, {"sync_max", "whole_l"}),
}

needs_sanitizer = pytest.mark.skipif(
    sanitizer() is None, reason="compute-sanitizer is not on the PATH"
)


def said_by(tool, options, kernel):
    done = subprocess.run(
        [sanitizer(), "--tool", tool, *options, sys.executable, str(SCRIPT), kernel],
        env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        capture_output=True,
        text=True,
    )
    said = done.stdout + done.stderr
    assert f"{kernel}: done" in said, said[-4000:]
    assert done.returncode == 0
    return said


@needs_sanitizer
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_nothing_is_found(kernel, tool):
    filtered, nothing = TOOLS[tool]
    # the name of the entry point contains the operation
    ours = ("--kernel-name", f"kernel_substring={KERNELS[kernel].operation}")
    said = said_by(tool, ours if filtered else (), kernel)
    if tool == "racecheck" and kernel in NOT_FOLLOWED:
        writers, readers = NOT_FOLLOWED[kernel]
        assert accesses(said, "Write") <= writers
        assert accesses(said, "Read") <= readers
    else:
        assert nothing in said, "\n".join(re.findall(r"=========.*", said)[:60])


def accesses(said, kind):
    """Return the functions whose accesses of a kind racecheck reports as parts of a race."""
    found = set()
    for place in re.findall(rf"{kind} access at (.*?)\+0x", said):
        while "<" in place:  # template arguments, from the innermost
            place = re.sub(r"<[^<>]*>", "", place)
        found.add(re.search(r"(\w+)\(", place).group(1))
    return found
