"""Every name that notation.md gives for a symbol is a name in the code."""

import ast
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
    suffix = ".cuh" if column == "CUDA" else ".py"
    paths = [ROOT / home for home in HOMES[column]]
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*"))]
    return [f.read_text(encoding="utf-8") for f in files if f.suffix == suffix]


def defined_in_python(text):
    """Return the functions, classes, parameters, variables, fields and imports of code."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.alias):
            found.add(node.asname or node.name if isinstance(node, ast.alias) else node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            # The fields of a record, as in COLUMNS.
            found |= {x.value for x in node.value.elts if isinstance(x, ast.Constant)}
    return found


# A type, then the name, then what ends a declaration or begins a function, an array or a value.
DECLARED = re.compile(
    r"[\w>*&]\s+\(?[&*]?(\w+)\)?\s*(?:[\[({;,):]|=[^=])|,\s+(\w+) =[^=]|#define (\w+)"
)


def defined_in_cuda(text):
    code = re.sub(r"//[^\n]*", "", text)
    return {name for pair in DECLARED.findall(code) for name in pair if name} - {"return"}


@pytest.mark.parametrize("column", HOMES)
def test_every_name_is_defined_in_the_code(column):
    defined_in = defined_in_cuda if column == "CUDA" else defined_in_python
    defined = set().union(*map(defined_in, sources(column)))
    told = [name for of, name in names() if of == column]
    assert told
    lost = [name for name in told if name.removesuffix("()").rpartition(".")[2] not in defined]
    assert not lost, f"{HOMES[column]} define none of {lost}"


def test_a_use_is_no_definition():
    assert defined_in_python("def f(q, k=2):\n    m = q[M]  # L = 3\n") == {"f", "q", "k", "m"}
    assert defined_in_cuda("float m[2]; // float s[2];\nx = a + b;\n") == {"m"}
