"""The whole CPU machine works on 64-bit ARM: zig compiles it here, and qemu runs it under Linux.

For macOS, where only the machine's fault handlers differ, it is compiled but not run.
"""

import shutil
import subprocess
import sys

import pytest

from labkernels.cuda.host.compiler import INCLUDE_DIRS, common_flags, compiler
from tests.cuda.host.small_kernels import KERNELS

pytestmark = pytest.mark.long  # zig first builds the C++ library of each machine
QEMU = "qemu-aarch64-static"


def made(folder, command, flags):
    """Return the built program of tests/cuda/host/kernels/whole_machine.cpp."""
    runtime = sorted(INCLUDE_DIRS[0].glob("lab/host/**/*.cpp"))
    parts = [*runtime, KERNELS / "whole_machine.cpp"]
    source = folder / "all.cpp"
    source.write_text("".join(f'#include "{path}"\n' for path in parts))
    found = [f"-I{INCLUDE_DIRS[0]}", f"-I{KERNELS}", str(source), "-o", str(folder / "made")]
    subprocess.run([*command, *flags, "-O1", *found], check=True)
    return folder / "made"


def for_arm(folder, target, *more):
    pytest.importorskip("ziglang", reason="ziglang: pip install ziglang")
    own = common_flags(tensor_core=90, checks=False)
    # without flags that are for this machine's own processor
    flags = [flag for flag in own if not flag.startswith(("-m", "-fcf", "-fstack-clash"))]
    zig = [sys.executable, "-m", "ziglang", "c++", "-target", target]
    return made(folder, zig, [*flags, *more])


def test_arm_gives_the_bits_of_this_machine(tmp_path):
    if shutil.which(QEMU) is None:
        pytest.skip(f"{QEMU}: apt-get install qemu-user-static")
    (tmp_path / "here").mkdir()
    flags = common_flags(tensor_core=90, checks=False)
    here = made(tmp_path / "here", compiler().command, [*flags, "-pthread"])
    arm = for_arm(tmp_path, "aarch64-linux-musl", "-static", "-pthread")
    told = [
        subprocess.run(command, check=True, capture_output=True, text=True).stdout
        for command in ([here], [QEMU, arm])
    ]
    assert told[0] == told[1]
    assert [line.split()[0] for line in told[0].splitlines()] == ["pipeline", "warpgroup"]


def test_the_machine_compiles_for_macos(tmp_path):
    program = for_arm(tmp_path, "aarch64-macos").read_bytes()
    assert program[:8] == bytes.fromhex("cffaedfe0c000001")  # a Mach-O file of 64-bit ARM
