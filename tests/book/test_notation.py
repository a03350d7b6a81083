"""Every name that notation.md gives for a symbol is a name in the code."""

import re

import pytest

from tests.repo.files import ROOT, read

PYTHON = ["labkernels/kernels/workload.py", "labkernels/formats.py", "labkernels/ops"]
PYTHON += ["labkernels/kernels/caches/paged.py", "labkernels/numerics"]
HOMES = {
    "Python": PYTHON,
    "NumPy": ["labkernels/numerics"],
    "CUDA": ["labkernels/cuda/include/lab", "labkernels/kernels"],
    "Triton": ["labkernels/kernels/decode/triton"],
}


def names():
    """Return (column, name) for every name in code font that a table of the page gives."""
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", read("book/notation.md"), re.MULTILINE):
        header, _, *rows = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()
        ]
        for row in rows:
            for column, cell in zip(header, row, strict=True):
                if column in HOMES:
                    found += [(column, name) for name in re.findall(r"`([^`]+)`", cell)]
    return found


def sources(column):
    suffixes = {".cuh"} if column == "CUDA" else {".py"}
    paths = [ROOT / home for home in HOMES[column]]
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*"))]
    return "\n".join(f.read_text(encoding="utf-8") for f in files if f.suffix in suffixes)


@pytest.mark.parametrize(("column", "name"), names(), ids=lambda value: value)
def test_name_is_in_the_code(column, name):
    word = name.removesuffix("()").rpartition(".")[2]
    assert re.search(rf"\b{re.escape(word)}\b", sources(column)), f"no {name} in {HOMES[column]}"
