"""compute-sanitizer finds nothing in any CUDA kernel."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from labkernels.measure.resources import cuda_kernels
from tests.gpu import handover, sanitize

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

SCRIPT = Path(sanitize.__file__)
HANDOVER = Path(handover.__file__)
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


# Kernels that read in each lane what the TMA brought, and let one lane arrive for its warp behind a
# sync_warp. racecheck does not follow that (see the last test); the CPU build's checker does.
ONE_LANE_ARRIVES = {"backward_wgmma": {"probabilities", "score_gradients"}}

needs_sanitizer = pytest.mark.skipif(
    sanitizer() is None, reason="compute-sanitizer is not on the PATH"
)


def said_by(tool, options, script, argument):
    done = subprocess.run(
        [sanitizer(), "--tool", tool, *options, sys.executable, str(script), str(argument)],
        env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        capture_output=True,
        text=True,
    )
    said = done.stdout + done.stderr
    assert f"{argument}: done" in said, said[-4000:]
    assert done.returncode == 0
    return said


@needs_sanitizer
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_nothing_is_found(kernel, tool):
    filtered, nothing = TOOLS[tool]
    # the entry point is named for the family
    ours = ("--kernel-name", f"kernel_substring={KERNELS[kernel].family}")
    said = said_by(tool, ours if filtered else (), SCRIPT, kernel)
    if tool == "racecheck" and kernel in ONE_LANE_ARRIVES:
        writers, readers = hazards(said)
        assert (writers, readers) == ({"bulk_load"}, ONE_LANE_ARRIVES[kernel])
    else:
        assert nothing in said, "\n".join(re.findall(r"=========.*", said)[:60])


def hazards(said):
    """Return which functions wrote, and which read, where racecheck reports races."""
    writers = re.findall(r"Race reported between Write access at .*?(\w+)[(<]", said)
    assert len(writers) == said.count("Race reported"), "a race that begins with a read"
    return set(writers), set(re.findall(r"and \w+ access at .*?::(\w+)[(<]", said))


@needs_sanitizer
def test_racecheck_does_not_see_a_warp_meet_before_its_one_lane_arrives():
    nothing, ours = TOOLS["racecheck"][1], ("--kernel-name", "kernel_substring=handover")
    for who, clean in (("warp", True), ("lane", False)):
        said = said_by("racecheck", ours, HANDOVER, who)
        assert (nothing in said) == clean, said[-4000:]
