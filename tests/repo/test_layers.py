"""Imports point down, and each floor uses only the libraries it may."""

import ast
import subprocess
import sys

import pytest

from tests.repo.files import ROOT, read

ARRAYS = {"numpy"}
DEVICE = ARRAYS | {"torch", "triton", "cuda"}


MAY_IMPORT = {
    "numerics": ARRAYS | {"threadpoolctl"},
    "records": {"filelock", "pyarrow"},
    "cuda": DEVICE | {"filelock"},
    "planners": ARRAYS,
    "kernels": DEVICE,
    "ops": DEVICE,
    "distributed": DEVICE,
    "compat": DEVICE | {"transformers"},
    "measure": DEVICE | {"flash_attn", "flashinfer"},
    "probing": DEVICE | {"flash_attn", "flashinfer"},
    "audit": ARRAYS | {"torch"},
    "chapters": DEVICE | {"flashinfer", "pandas"},
    "experiments": DEVICE | {"distributed"},
    "plots": ARRAYS | {"pandas", "matplotlib", "seaborn"},
    "bench": ARRAYS | {"pandas", "matplotlib", "pygments", "tqdm"},
    "widgets": ARRAYS | {"anywidget", "traitlets"},
    "cli": DEVICE | {"submitit", "tqdm"},
}


FLOORS = {path.stem for path in (ROOT / "labkernels").iterdir() if path.suffix in (".py", "")}
FLOORS -= {"__init__", "__main__", "__pycache__"}


def floor_files(floor):
    folder = ROOT / "labkernels" / floor
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]


def imported_packages(path):
    """Return the top-level names that a file imports, wherever in the file it does."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("floor", sorted(FLOORS))
def test_floor_uses_only_its_libraries(floor):
    allowed = MAY_IMPORT.get(floor, set()) | sys.stdlib_module_names | {"labkernels"}
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in floor_files(floor)
        for name in imported_packages(path)
        if name not in allowed
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "floor",
    ["budget", "hardware", "policy", "variant", "defects", "formats", "units", "kept", "places"],
)
def test_low_floors_load_without_numpy_or_torch(floor):
    code = (
        f"import sys, labkernels.{floor}\n"
        "print(sorted({'numpy', 'torch', 'triton', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stdout + done.stderr


def test_every_floor_is_in_the_readme():
    assert set(MAY_IMPORT) < FLOORS
    assert not [floor for floor in sorted(FLOORS) if f"`{floor}`" not in read("README.md")]
