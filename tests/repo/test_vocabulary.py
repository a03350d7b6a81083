"""Kernels are written in the words of labkernels/cuda/include/lab and in nothing else."""

import re
from pathlib import Path

import pytest

from tests.repo.files import read, with_suffix

VOCABULARY = Path("labkernels/cuda/include/lab")
RAW = re.compile(
    r"\basm\b|\b__\w+|\bthreadIdx\b|\bblockIdx\b|\bblockDim\b|\bgridDim\b|\bwarpSize\b"
    r"|\bcuda_\w+\.h\b|\bcooperative_groups\b|\bnvcuda\b"
)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"][^>"]+[>"])', re.MULTILINE)


def kernel_sources():
    return [path for path in with_suffix(".cuh", ".cu") if VOCABULARY not in path.parents]


@pytest.mark.parametrize("path", kernel_sources(), ids=str)
def test_kernel_uses_no_raw_instruction(path):
    code = COMMENT.sub("", read(path))
    raw = sorted(set(RAW.findall(code)))
    assert not raw, f"{raw}: put a word for it in {VOCABULARY}, with its CPU meaning in host/"


@pytest.mark.parametrize("path", kernel_sources(), ids=str)
def test_kernel_includes_only_the_vocabulary(path):
    ours = ('"lab/', f'"{path.parent.name}/')
    foreign = [name for name in INCLUDE.findall(read(path)) if not name.startswith(ours)]
    assert not foreign, f"{foreign}: what two kernels share lives in {VOCABULARY}"


def test_triton_kernels_hold_no_inline_assembly():
    kernels = [path for path in with_suffix(".py") if path.parts[:2] == ("labkernels", "kernels")]
    assert not [str(path) for path in kernels if "inline_asm" in read(path)]
