"""The containers and the issue forms name files and commands that are there."""

import json
import re
import tomllib

import pytest
import torch
import yaml

from labkernels import cli
from tests.repo.files import ROOT, read

FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))


def test_the_dockerfile_copies_what_is_there():
    text = read("Dockerfile")
    copied = re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE)
    assert copied
    for name in " ".join(copied).split():
        assert (ROOT / name).exists(), name
    kept_out = read(".dockerignore").split()
    assert not {"labkernels", "data", "pyproject.toml"} & set(kept_out)
    shown = re.findall(r"^#.* labkernels (\w+)", text.partition("FROM")[0], re.MULTILINE)
    (standard,) = re.findall(r'^CMD \["(\w+)"\]$', text, re.MULTILINE)
    assert {"doctor", "record", standard} <= {*shown, standard} <= set(cli.commands())


def test_the_dockerfile_names_the_commit_of_rows_where_the_image_has_no_git():
    assert ".git" in read(".dockerignore").split()
    commands = read("Dockerfile").partition("FROM")[0].replace("\\\n#", "").splitlines()
    records = [line for line in commands if " labkernels record " in line]
    assert records
    assert all(' --commit "$(git rev-parse HEAD)"' in line for line in records)


def test_all_containers_have_the_same_python():
    assert "FROM python:3.11-" in read("Dockerfile")
    assert read(".binder/runtime.txt").strip() == "python-3.11"
    container = json.loads(read(".devcontainer/devcontainer.json"))
    assert "python:3.11-" in container["image"]
    assert re.search(r"^\.venv/installed:", read("Makefile"), re.MULTILINE)
    assert container["postCreateCommand"].endswith("make .venv/installed")


def test_binder_installs_what_the_lab_pins():
    (line,) = read(".binder/requirements.txt").splitlines()
    assert (ROOT / ".binder" / line.removeprefix("--requirement ")).resolve() == (
        ROOT / "requirements.in"
    )
    assert (ROOT / ".binder" / "postBuild").stat().st_mode & 0o111
    assert {"g++", "make"} == set(read(".binder/apt.txt").split())


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_asks_for_something(path):
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= form.keys()
    asked = [part for part in form["body"] if part["type"] != "markdown"]
    assert all(part["attributes"]["label"] for part in asked)
    assert len({part["id"] for part in asked}) == len(asked) > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_the_form_for_a_kernel_that_differs_makes_a_dump_that_audit_reads(
    dtype, tmp_path, monkeypatch
):
    (path,) = (path for path in FORMS if path.stem == "my_kernel_differs")
    code = re.search(r"```python\n(.+?)```", path.read_text(encoding="utf-8"), re.DOTALL)[1]
    monkeypatch.chdir(tmp_path)
    one = torch.ones(1, 2, 3, 64, dtype=dtype)
    exec(re.sub(r"^ +", "", code, flags=re.MULTILINE), {"q": one, "k": one, "v": one, "out": one})
    assert cli.main(["audit", "dump.pt"]) == 0


def test_the_project_has_one_address():
    address = yaml.safe_load(read("book/_config.yml"))["repository"]["url"]
    urls = tomllib.loads(read("pyproject.toml"))["project"]["urls"]
    assert all(url.startswith(address) for url in urls.values())
    assert yaml.safe_load(read("CITATION.cff"))["repository-code"] == address
