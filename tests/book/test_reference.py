"""The API reference and the page of notation show the code's names as they are meant."""

import re

import pytest
from docstrings import plain

from tests.repo.files import ROOT, read

PYTHON = ["labkernels/kernels/workload.py", "labkernels/formats.py", "labkernels/ops"]
PYTHON += ["labkernels/kernels/caches", "labkernels/numerics"]
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


def words(column):
    """Return the words of the code at a column's places, without comments."""
    suffix, comment = (".cuh", r"//.*") if column == "CUDA" else (".py", r"#.*")
    paths = [ROOT / home for home in HOMES[column]]
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*"))]
    texts = [file.read_text(encoding="utf-8") for file in files if file.suffix == suffix]
    return {word for text in texts for word in re.findall(r"\w+", re.sub(comment, "", text))}


@pytest.mark.parametrize("column", HOMES)
def test_every_name_is_in_the_code(column):
    told = [name for of, name in names() if of == column]
    assert told
    found = words(column)
    lost = [name for name in told if name.removesuffix("()").rpartition(".")[2] not in found]
    assert not lost, f"{HOMES[column]} have none of {lost}"


def test_a_part_holds_its_lines_and_ends_where_the_next_starts():
    lines = ["A sum.", "", "Shapes: x [n];", "y [n]", "scale, bias: numbers", "", "Then text."]
    assert plain(lines) == [
        "A sum.",
        "",
        ":Shapes: x [n];",
        "    y [n]",
        ":scale, bias: numbers",
        "",
        "Then text.",
    ]


def test_characters_mean_themselves_and_examples_and_sentences_stay():
    assert plain(["A sum.", "More text.", "Units: s"])[1:] == ["More text.", "", ":Units: s"]
    assert plain(["2 ** n_x of `a_b`, |x|"]) == [r"2 \*\* n\_x of ``a_b``, \|x\|"]
    for lines in (
        ["A mask.", "", "The mask is aligned to the end: so it is."],
        ["A sum.", "", ">>> f(a_b)", "x_y: 1"],
    ):
        assert plain(lines) == lines
