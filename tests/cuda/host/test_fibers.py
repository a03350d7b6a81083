"""A fiber that takes turns with another keeps its values, whatever register holds them."""

import shutil
import subprocess
from pathlib import Path

import pytest

from labkernels.cuda.host.compiler import INCLUDE_DIRS, common_flags, compiler

SOURCE = Path(__file__).parent / "kernels" / "many_live_values.cpp"
ARM = ("aarch64-linux-gnu-g++", "qemu-aarch64-static")
WORD = 2**64


def expected(x):
    """Return what many_live_values.cpp prints for one fiber."""
    values = []
    for _ in range(40):
        x = (x * 6364136223846793005 + 1442695040888963407) % WORD
        values.append(x)
    for turn in range(3):
        values = [(value * 3 + turn) % WORD for value in values]
    total = 0
    for value in values:
        total = (total * 31 + value) % WORD
    return f"{total:016x}"


def told(made, *, by, flags, start=()):
    command = [*by, *flags, f"-I{INCLUDE_DIRS[0]}", str(SOURCE), "-o", str(made)]
    subprocess.run(command, check=True)
    return subprocess.run([*start, made], check=True, capture_output=True, text=True).stdout.split()


@pytest.mark.parametrize("portable", [False, True])
def test_a_fiber_keeps_its_values(tmp_path, portable):
    flags = common_flags(tensor_core=80, checks=False, portable_fibers=portable)
    found = told(tmp_path / "made", by=compiler().command, flags=flags)
    assert found == [expected(2), expected(1)]


def test_a_fiber_of_64_bit_arm_keeps_its_values(tmp_path):
    missing = [name for name in ARM if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)}: apt-get install g++-aarch64-linux-gnu qemu-user")
    flags = ["-std=c++20", "-O3", "-static"]
    found = told(tmp_path / "made", by=ARM[:1], flags=flags, start=ARM[1:])
    assert found == [expected(2), expected(1)]
