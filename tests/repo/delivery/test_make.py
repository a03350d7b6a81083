"""make lists its tasks, the README explains them, and a missing tool is named with its remedy."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.repo.files import ROOT, read

NEEDED = ["sh", "make", "awk", "sed", "grep", "mkdir", "rm", "touch", "uname", "env"]


def make(*arguments, path, **variables):
    """Run make in a copy of what it reads, seeing only the programs on `path`."""
    environment = {"PATH": str(path), "HOME": str(path.parent), "LC_ALL": "C", **variables}
    command = [shutil.which("make"), *arguments]
    folder = path.parent / "checkout"
    folder.mkdir(exist_ok=True)
    for name in ("Makefile", "requirements.in", "requirements.lock", "pyproject.toml", "README.md"):
        if not (folder / name).exists():
            shutil.copy(ROOT / name, folder)
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture
def programs(tmp_path):
    """Return a folder for PATH with only the shell's own tools; tests add what they need."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in NEEDED:
        found = shutil.which(name)
        if found:
            (folder / name).symlink_to(found)
    return folder


def add_program(folder, name, script):
    path = folder / name
    path.unlink(missing_ok=True)  # a link leads to a program of this machine
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def message(done):
    """Return the lines that are labkernels' own, without make's."""
    assert done.returncode != 0
    return [line for line in done.stderr.splitlines() if not line.startswith("make:")]


def test_help_lists_every_task_of_the_makefile_and_each_is_explained():
    listed = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True, env=os.environ
    ).stdout
    tasks = re.findall(r"^make (\S+) +\S", listed, re.MULTILINE)
    assert tasks == re.findall(r"^([a-z-]+):.*## ", read("Makefile"), re.MULTILINE)
    assert tasks[0] == "help"
    guides = read("README.md") + read("CONTRIBUTING.md")
    assert [task for task in tasks[1:] if f"make {task}" not in guides] == []


def test_chapters_find_labkernels_where_it_is_not_installed(programs):
    add_program(programs, "g++", "exit 0")
    add_program(programs, "python", 'echo "$PYTHONPATH"')
    asked = ("notebooks", "TO=edition", f"BIN={programs}")
    done = make(*asked, path=programs, PYTHONPATH="/carried")
    assert done.stdout.strip() == f"{programs.parent / 'checkout'}:/carried"


MISSING = {  # the programs that are there, and words of what is said
    "compiler": ({}, ("C++20", "apt install g++")),
    "Python": (
        {"python3": "[ $1 = -V ] && echo Python 3.9.2"},
        ("found: Python 3.9.2", "apt install python3.11-venv"),
    ),
    "venv": (
        {"python3.11": 'case "$*" in *ensurepip*) exit 1;; esac; exit 0'},
        ("virtual environment", "apt install python3.11-venv"),
    ),
    "certificates of uv": (
        {"uv": 'echo "error: invalid peer certificate" >&2; exit 2'},
        ("error: invalid peer certificate\n", "UV_SYSTEM_CERTS", "pip"),
    ),
}


@pytest.mark.parametrize("name", MISSING)
def test_what_is_missing_is_named_with_its_remedy(programs, name):
    there, words = MISSING[name]
    for program, script in ({"g++": "exit 0"} | there if there else {}).items():
        add_program(programs, program, script)
    lines = message(make("book", path=programs))
    assert len(lines) == 1 + ("uv" in there)
    for word in words:
        assert word in "\n".join(lines)


def test_a_moved_checkout_makes_its_environment_again(programs):
    for name in ("g++", "python3.11"):
        add_program(programs, name, "exit 0")
    add_program(programs, "cat", f'exec {shutil.which("cat")} "$@"')
    checkout = programs.parent / "checkout"
    link = checkout / ".venv/lib/python3.11/site-packages/_labkernels.pth"
    link.parent.mkdir(parents=True)
    (checkout / ".venv/bin").mkdir()
    add_program(checkout / ".venv/bin", "python", "exit 0")
    link.write_text(str(checkout))
    assert make(".venv/installed", path=programs).returncode == 0
    again = make(".venv/installed", path=programs)
    assert "is up to date" in again.stdout
    link.write_text("/elsewhere")
    moved = make(".venv/installed", path=programs)
    assert f"is that of /elsewhere; it is made again for {checkout}" in moved.stdout
    assert "Making the environment in .venv" in moved.stdout


def test_the_environment_of_another_checkout_is_left_alone(programs):
    add_program(programs, "g++", "exit 0")
    add_program(programs, "cat", f'exec {shutil.which("cat")} "$@"')
    makes = 'case "$*" in *"venv --clear"*) mkdir -p .venv && rm -rf .venv/*;; esac'
    add_program(programs, "python3.11", makes)
    other, checkout = programs.parent / "other", programs.parent / "checkout"
    link = other / "lib/python3.11/site-packages/_labkernels.pth"
    link.parent.mkdir(parents=True)
    link.write_text("/elsewhere")
    checkout.mkdir()
    (checkout / ".venv").symlink_to(other)
    make(".venv/installed", path=programs)
    assert link.exists()
    assert not (checkout / ".venv").is_symlink()


@pytest.mark.parametrize("index", ["", "https://cpu.example/whl"])
def test_torch_alone_comes_from_its_own_index(programs, index):
    for name in ("g++", "python3.11"):
        add_program(programs, name, "exit 0")
    (programs.parent / "checkout/.venv/bin").mkdir(parents=True)
    add_program(programs.parent / "checkout/.venv/bin", "python", 'echo "$PIP_INDEX_URL $@"')
    assert make(".venv/installed", path=programs, TORCH_INDEX=index).returncode == 0
    log = (programs.parent / "checkout/.venv/install.log").read_text().splitlines()
    (hashed,), (torch,) = ([line for line in log if word in line] for word in ("hashes", "torch=="))
    assert hashed.startswith(" -m pip")
    assert torch.startswith(f"{index} -m pip")
    assert ("--no-deps torch==" in torch) == bool(index)


@pytest.mark.long
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="needs Python 3.11 to make the venv")
def test_missing_network_is_named(programs):
    add_program(programs, "g++", "exit 0")
    add_program(programs, "python3.11", f'exec "{sys.executable}" "$@"')
    nothing_answers = "http://127.0.0.1:9/"
    offline = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": nothing_answers, "PIP_RETRIES": "0"}
    (line,) = message(make("book", path=programs, **offline))
    assert "network" in line
    assert "again" in line


@pytest.mark.parametrize(("strict", "basic"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_either_check_of_types_fails_lint(tmp_path, strict, basic):
    """The two checks run side by side."""
    for name in ("ruff", "clang-format", "lint-imports", "codespell", "deptry"):
        add_program(tmp_path, name, "exit 0")
    add_program(tmp_path, "mypy", f'case "$*" in *basic*) exit {basic};; esac; exit {strict}')
    done = subprocess.run(["make", "-s", "lint", f"BIN={tmp_path}"], cwd=ROOT, capture_output=True)
    assert (done.returncode != 0) == bool(strict or basic)


def test_readme_maps_every_folder_and_its_pictures_exist():
    text = read("README.md")
    folders = {p.name for p in ROOT.iterdir() if p.is_dir() and p.name[0] not in "._"}
    assert not [name for name in sorted(folders) if f"`{name}/`" not in text]
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert pictures
    assert all((ROOT / picture).is_file() for picture in pictures)
