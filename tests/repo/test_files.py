"""Files stay small, readable on any machine, and free of what a reader cannot use."""

import ast
import collections
import functools
import re
from pathlib import Path

import pytest

from tests.repo.files import ROOT, project_files, read, text_files, with_suffix

CODE = (".py", ".cuh", ".hpp", ".cpp", ".js", ".mjs")
CHAPTERS = Path("notebooks")  # prose, one sentence per line
LINES_MAX = 400
COLUMNS_MAX = 100
FUNCTION_LINES_MAX = 60
FILE_BYTES_MAX = 5 * 512 * 1024

# Words that promise work instead of doing it, spelled in halves so that this file has none.
BANNED = re.compile("|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX", "NotImplemented" + "Error"]))
# Folders that exist on one machine only; the pattern cannot match its own text.
MACHINE_PATH = re.compile(
    r"(?<![\w.])/(?:home|root|Users|work|mnt|opt)/\w|/tmp/(?:ipykernel|tmp)\w"
)
REGISTRY = re.compile(
    r"--(?:extra-)?index-url|--find-links|--trusted-host|pypi\.org/simple|pythonhosted\.org"
    r"|registry\.npmjs|download\.pytorch\.org"
)


def code_files():
    return [path for path in with_suffix(*CODE) if CHAPTERS not in path.parents]


@functools.cache
def parsed(path):
    return ast.parse(read(path))


def lines_beside_tables(path):
    """Return how many lines a file has beside its tables, which are read by looking things up.

    A table is an assignment of more than twenty lines at the top of a Python file.
    """
    n_lines = len(read(path).splitlines())
    if path.suffix != ".py":
        return n_lines
    found = [n for n in parsed(path).body if isinstance(n, ast.Assign | ast.AnnAssign)]
    sizes = [node.end_lineno - node.lineno + 1 for node in found]
    return n_lines - sum(size for size in sizes if size > 20)


def test_code_files_are_short_and_narrow():
    long = {str(path): n for path in code_files() if (n := lines_beside_tables(path)) > LINES_MAX}
    assert not long, f"more than {LINES_MAX} lines beside tables: divide by ideas: {long}"
    wide = [
        f"{path}:{i}"
        for path in code_files()
        for i, line in enumerate(read(path).splitlines(), 1)
        if len(line) > COLUMNS_MAX
    ]
    assert not wide, f"lines wider than {COLUMNS_MAX} columns: {wide}"


def test_python_functions_are_short():
    long = []
    for path in with_suffix(".py"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                n_lines = node.end_lineno - node.lineno + 1
                if n_lines > FUNCTION_LINES_MAX:
                    long.append(f"{path}:{node.lineno} {node.name}: {n_lines} lines")
    assert not long, "\n".join(long)


def test_no_folder_is_crowded():
    beside = collections.defaultdict(set)
    for path in with_suffix(*CODE):
        if path.parts[0] in ("labkernels", "tests") and path.stem != "__init__":
            beside[path.parent].add(path.stem)  # a header and its source are one
    crowded = {str(folder): len(names) for folder, names in beside.items() if len(names) > 12}
    assert not crowded, f"more than 12 files beside each other: make rooms: {crowded}"


def test_no_file_is_large():
    large = {str(path): (ROOT / path).stat().st_size for path in project_files()}
    large = {path: n_bytes for path, n_bytes in large.items() if n_bytes > FILE_BYTES_MAX}
    assert not large, f"larger than {FILE_BYTES_MAX} bytes: {large}"


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        (BANNED, "a promise of later work: do it, or open an issue"),
        (MACHINE_PATH, "a folder of one machine"),
        (re.compile(re.escape(str(ROOT)) if len(ROOT.parts) > 2 else "$^"), "this checkout"),
        (REGISTRY, "a package index: which one pip asks is the reader's setting"),
    ],
    ids=["promises", "machine paths", "this checkout", "package indexes"],
)
def test_no_text_file_holds(pattern, what):
    here = Path(__file__).relative_to(ROOT)
    found = []
    for path in text_files():
        if path == here or (path.suffix == ".ipynb" and pattern is BANNED):
            continue  # a picture in a notebook can spell anything; its script is read
        for i, line in enumerate(read(path).splitlines(), 1):
            match = pattern.search(line)
            if match:
                found.append(f"{path}:{i}: {match.group()}")
    assert not found, what + "\n" + "\n".join(found)
