"""Files stay small, readable on any machine, and free of what a reader cannot use."""

import ast
import collections
import re
import shutil
import subprocess
import sys
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


def lines_beside_tables(path):
    """Return how many lines a file has beside its tables, which are read by looking things up.

    A table is an assignment of more than twenty lines at the top of a Python file.
    """
    n_lines = len(read(path).splitlines())
    if path.suffix != ".py":
        return n_lines
    found = [n for n in ast.parse(read(path)).body if isinstance(n, ast.Assign | ast.AnnAssign)]
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
        for node in ast.walk(ast.parse(read(path))):
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
        (REGISTRY, "a package index: which one pip asks is the reader's setting"),
    ],
    ids=["promises", "machine paths", "package indexes"],
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


def test_no_text_file_names_this_checkout():
    here = str(ROOT)
    found = [str(path) for path in text_files() if len(ROOT.parts) > 2 and here in read(path)]
    assert not found, f"these files name {here}: {found}"


def test_a_tree_without_git_has_the_files_that_git_would_track(tmp_path):
    kept = (".gitignore", "tests/repo/files.py")
    for name in kept:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name in (".venv/lib", "tests/__pycache__/files.pyc", "data/.lock"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    code = "from tests.repo.files import project_files; print(*project_files())"
    command = [sys.executable, "-B", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert tuple(done.stdout.split()) == kept


def test_text_files_end_with_one_newline():
    wrong = [
        str(path)
        for path in text_files()
        if path.suffix not in {".ipynb", ".svg"} and (text := read(path))
        if not text.endswith("\n") or text.endswith("\n\n") or "\r" in text
    ]
    assert not wrong, wrong


def test_few_places_are_laid_out_by_hand():
    """A region needs a reason that its table shows; make the code such that it needs none."""
    sources = {path: read(path) for path in with_suffix(".cuh", ".hpp", ".cpp")}
    for path, text in sources.items():
        assert text.count("clang-format off") == text.count("clang-format on"), path
    folder = Path("labkernels/cuda/include/lab")
    by_hand = {path for path, text in sources.items() if "clang-format off" in text}
    allowed = ("banks/shadow.cpp", "host/races/shadow.cpp", "hopper/wgmma.cuh")
    assert by_hand == {folder / name for name in allowed}
