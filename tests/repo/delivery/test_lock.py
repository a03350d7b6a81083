"""requirements.lock pins everything; environment.yml and pyproject.toml agree with its source."""

import re
import tomllib
from importlib import metadata

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import labkernels
from tests.repo.files import read

# conda-forge's name for a PyPI package, where the two differ.
CONDA_FORGE_TO_PYPI = {
    "pytorch": "torch",
    "matplotlib-base": "matplotlib",
    "seaborn-base": "seaborn",
}
# In environment.yml for the machine, not from PyPI.
CONDA_ONLY = {"python", "pip", "make", "cxx-compiler"}
LINUX_ONLY = {"triton", "cuda-bindings", "cuda-pathfinder", "nvidia-cuda-nvrtc"}


def requirement_lines(text):
    """Return the lines that pin a package, without comments and hashes."""
    lines = (line.removesuffix("\\").strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith(("#", "--hash"))]


def pins(lines):
    """Return {name: [(version, marker)]}, every version exact."""
    found = {}
    for line in lines:
        requirement = Requirement(line)
        (specifier,) = requirement.specifier
        assert specifier.operator == "==", f"{line}: not an exact version"
        pin = (specifier.version, str(requirement.marker or ""))
        found.setdefault(canonicalize_name(requirement.name), []).append(pin)
    return found


def once(pinned):
    """Return {name: (version, marker)}; a name pinned twice is an error."""
    assert not [name for name, versions in pinned.items() if len(versions) > 1]
    return {name: versions[0] for name, versions in pinned.items()}


@pytest.fixture(scope="module")
def lock():
    return pins(requirement_lines(read("requirements.lock")))


@pytest.fixture(scope="module")
def direct():
    return once(pins(requirement_lines(read("requirements.in"))))


def test_lock_is_exact_hashed_and_portable(lock):
    text = read("requirements.lock")
    pinned = [version for versions in lock.values() for version, _ in versions]
    assert not [version for version in pinned if "+" in version], "versions of one build only"
    assert not re.search(r"https?:|file:", text)
    entries = re.split(r"\n(?=\w)", text)[1:]
    assert len(entries) == len(pinned)
    assert not [entry for entry in entries if "--hash=sha256:" not in entry]
    linux = {name for name, ((_, marker), *_) in lock.items() if '== "linux"' in marker}
    assert linux == LINUX_ONLY


def test_the_lock_holds_what_the_lab_asks_for(lock, direct):
    """Only torch is not in the lock: one version of torch has a CPU and a CUDA build."""
    assert {name for name in direct if lock.get(name) != [direct[name]]} == {"torch"}


def test_environment_equals_requirements_in(direct):
    entries = yaml.safe_load(read("environment.yml"))["dependencies"]
    by_pip = next(entry["pip"] for entry in entries if isinstance(entry, dict))
    found = once(pins(line for line in by_pip if line != "-e ."))
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


def test_the_lock_is_closed(lock):
    """All that a pinned package needs here is pinned too, so that no version changes by itself."""
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


def test_extras_name_only_what_the_lock_pins_and_the_readme_names_them():
    project = tomllib.loads(read("pyproject.toml"))["project"]
    extras = project["optional-dependencies"]
    (line,) = (line for line in read("README.md").splitlines() if "its extras are" in line)
    told = line.partition("its extras are")[2]
    assert sorted(re.findall(r"`(\w+)`", told)) == sorted(extras)
    assert set(extras.pop("course")) - {"labkernels[book]"} == {"nbgrader", "sphinx-revealjs"}
    asked = [*project["dependencies"], *(line for lines in extras.values() for line in lines)]
    names = {canonicalize_name(Requirement(line).name) for line in asked} - {"labkernels"}
    direct = once(pins(requirement_lines(read("requirements.in"))))
    assert names | {"hatchling"} == set(direct)


def test_one_version_number():
    version = tomllib.loads(read("pyproject.toml"))["project"]["version"]
    assert yaml.safe_load(read("CITATION.cff"))["version"] == version
    assert labkernels.__version__ == version
    (head, *_) = re.findall("^## .*", read("CHANGELOG.md"), re.MULTILINE)
    assert re.fullmatch(rf"## {re.escape(version)} \((unreleased|\d{{4}}-\d\d-\d\d)\)", head)
