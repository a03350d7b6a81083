"""The containers and the issue forms name files and commands that are there."""

import json
import re
import tomllib

import torch
import yaml

from labkernels import cli
from tests.repo.files import ROOT, read


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


def test_containers_environment_and_package_have_the_same_python():
    assert "FROM python:3.11-" in read("Dockerfile")
    assert read(".binder/runtime.txt").strip() == "python-3.11"
    container = json.loads(read(".devcontainer/devcontainer.json"))
    assert "python:3.11-" in container["image"]
    assert container["postCreateCommand"].endswith("make .venv/installed")
    assert "python=3.11" in yaml.safe_load(read("environment.yml"))["dependencies"]
    assert "LOCKED_FOR := >=3.11,<3.14" in read("Makefile")
    assert tomllib.loads(read("pyproject.toml"))["project"]["requires-python"] == ">=3.11"


def test_binder_installs_what_the_lab_pins():
    (line,) = read(".binder/requirements.txt").splitlines()
    assert (ROOT / ".binder" / line.removeprefix("--requirement ")).resolve() == (
        ROOT / "requirements.in"
    )
    assert (ROOT / ".binder" / "postBuild").stat().st_mode & 0o111


def test_the_form_for_a_kernel_that_differs_makes_a_dump_that_audit_reads(tmp_path, monkeypatch):
    form = read(".github/ISSUE_TEMPLATE/my_kernel_differs.yml")
    code = re.search(r"```python\n(.+?)```", form, re.DOTALL)[1]
    monkeypatch.chdir(tmp_path)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        one = torch.ones(1, 2, 3, 64, dtype=dtype)
        tensors = {"q": one, "k": one, "v": one, "out": one}
        exec(re.sub(r"^ +", "", code, flags=re.MULTILINE), tensors)
        assert cli.main(["audit", "dump.pt"]) == 0, dtype


def test_the_project_has_one_address():
    address = yaml.safe_load(read("book/_config.yml"))["repository"]["url"]
    urls = tomllib.loads(read("pyproject.toml"))["project"]["urls"]
    assert all(url.startswith(address) for url in urls.values())
    assert yaml.safe_load(read("CITATION.cff"))["repository-code"] == address
