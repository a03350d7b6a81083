"""requirements.lock pins everything; environment.yml and pyproject.toml agree with it."""

import re
import tomllib
from importlib import metadata

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.repo.files import ROOT, read

# conda-forge's name for a PyPI package, where the two differ.
CONDA_FORGE_TO_PYPI = {
    "pytorch": "torch",
    "matplotlib-base": "matplotlib",
    "seaborn-base": "seaborn",
}
# In environment.yml for the machine, not from PyPI.
CONDA_ONLY = {"python", "pip", "make", "cxx-compiler"}
LINUX_ONLY = {"triton", "cuda-core", "cuda-bindings", "cuda-pathfinder", "nvidia-cuda-nvrtc"}
SECOND_PART = "# What those need in turn."


def lock_lines(text):
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def pins(lines):
    """Return {name: (version, marker)}; a name pinned twice is an error."""
    found = {}
    for line in lines:
        requirement = Requirement(line)
        name = canonicalize_name(requirement.name)
        assert name not in found, f"{name} is pinned twice"
        (specifier,) = requirement.specifier
        assert specifier.operator == "==", f"{line}: not an exact version"
        found[name] = (specifier.version, str(requirement.marker or ""))
    return found


@pytest.fixture(scope="module")
def lock():
    return pins(lock_lines(read("requirements.lock")))


@pytest.fixture(scope="module")
def direct():
    return pins(lock_lines(read("requirements.lock").partition(SECOND_PART)[0]))


def test_lock_is_exact_and_portable(lock):
    local = [name for name, (version, _) in lock.items() if "+" in version]
    assert not local, f"versions of one build only: {local}"
    assert not re.search(r"https?:|file:|--hash", read("requirements.lock"))
    assert {name for name, (_, marker) in lock.items() if "linux" in marker} == LINUX_ONLY


def test_environment_equals_the_locks_first_part(direct):
    entries = yaml.safe_load(read("environment.yml"))["dependencies"]
    by_pip = next(entry["pip"] for entry in entries if isinstance(entry, dict))
    found = pins(line for line in by_pip if line != "-e .")
    for entry in entries:
        if isinstance(entry, dict) or entry in CONDA_ONLY:
            continue
        name, version = entry.split("=")
        if name in CONDA_ONLY:
            continue
        name = canonicalize_name(CONDA_FORGE_TO_PYPI.get(name, name))
        assert name not in found, f"{name} is in environment.yml twice"
        found[name] = (version, "")
    assert found == direct


def test_environment_and_make_use_the_same_python():
    assert "python=3.11" in yaml.safe_load(read("environment.yml"))["dependencies"]
    assert "Python 3.11" in read("Makefile")


def test_the_lock_is_closed(lock):
    """Whatever a pinned package needs here is pinned too, so that no version is left to the day."""
    loose = set()
    for name in lock:
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # of another system
        for need in map(Requirement, needs):
            needed = canonicalize_name(need.name)
            # torch's build for NVIDIA GPUs pins its own CUDA libraries
            cuda = name == "torch" and needed.startswith(("nvidia-", "cuda-"))
            applies = need.marker is None or need.marker.evaluate({"extra": ""})
            if applies and not cuda and needed not in lock:
                loose.add(f"{name} needs {needed}")
    assert not loose


def test_extras_name_only_what_the_lock_pins(direct):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *(line for lines in extras.values() for line in lines)]
    names = {canonicalize_name(Requirement(line).name) for line in asked} - {"labkernels"}
    assert names | {"flit-core"} == set(direct)


def test_one_version_number():
    version = tomllib.loads(read("pyproject.toml"))["project"]["version"]
    assert yaml.safe_load(read("CITATION.cff"))["version"] == version
    assert f"## {version}" in read("CHANGELOG.md")
