"""The workflows name only what is there, and the steps that can be run here do what they say."""

import os
import re
import subprocess
from itertools import chain

import pytest
import yaml

from labkernels import cli
from tests.repo.files import ROOT, read

FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in sorted(FOLDER.glob("*.yml"))}
TOOLS = {"cyclonedx_py", "hatchling", "pytest", "pip", "pip_audit"}


def runs(workflow):
    for job in WORKFLOWS[workflow]["jobs"].values():
        yield from (step["run"] for step in job["steps"] if "run" in step)


def all_runs():
    return chain.from_iterable(runs(name) for name in WORKFLOWS)


def shell(script, *, cwd, **variables):
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )


def git(*arguments, cwd):
    named = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main"]
    done = subprocess.run(
        ["git", *named, *arguments], cwd=cwd, check=True, capture_output=True, text=True
    )
    return done.stdout


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_asks_for_few_rights_and_ends(name):
    assert "permissions" in WORKFLOWS[name]
    for job in WORKFLOWS[name]["jobs"].values():
        assert job["steps"]
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step)
            assert "uses" not in step or re.fullmatch(r"[\w-]+/[\w-]+@[\w/.]+", step["uses"])


def test_every_step_is_good_shell():
    for script in all_runs():
        done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
        assert done.returncode == 0, f"{script}\n{done.stderr}"


def test_every_task_of_make_exists():
    named = {word for script in all_runs() for word in re.findall(r"\bmake ([\w./]+)", script)}
    assert {"lint", "book", "record", ".venv/installed"} <= named
    targets = re.findall(r"^([\w./]+):", read("Makefile"), re.MULTILINE)
    assert named <= set(targets)


def test_every_command_and_module_exists():
    scripts = "\n".join(all_runs())
    commands = set(re.findall(r"^(?:\.venv/bin/)?labkernels (\w+)", scripts, re.MULTILINE))
    assert commands
    assert commands <= set(cli.commands())
    assert set(re.findall(r"python -m (\w+)", scripts)) <= TOOLS
    for path in re.findall(r"\bbash (\S+)", scripts):
        assert (ROOT / path).is_file(), path


def test_a_hook_of_pre_commit_names_what_is_there():
    repos = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]
    (hooks,) = (repo["hooks"] for repo in repos if repo["repo"] == "local")
    named = [word for hook in hooks for word in hook["entry"].split() if word.startswith("tests/")]
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_actionlint_knows_the_labels_of_our_own_runners():
    known = yaml.safe_load(read(".github/actionlint.yaml"))["self-hosted-runner"]["labels"]
    asked = [job["runs-on"] for flow in WORKFLOWS.values() for job in flow["jobs"].values()]
    own = [set(labels) - {"self-hosted", "linux"} for labels in asked if isinstance(labels, list)]
    assert own == [set(known)]


def test_each_folder_of_tests_is_in_one_shard():
    shards = WORKFLOWS["test"]["jobs"]["test"]["strategy"]["matrix"]["folders"]
    assert len(shards) == 2
    named = sorted(" ".join(shards).split())
    folders = [path for path in (ROOT / "tests").iterdir() if any(path.rglob("test_*.py"))]
    expected = [f"tests/{p.name}" for p in folders if p.is_dir() and p.name != "gpu"]
    assert named == sorted([*expected, "tests/*.py"])


def test_each_version_of_the_book_has_a_folder_that_stays(tmp_path):
    git("init", "--bare", "origin", cwd=tmp_path)
    git("clone", "origin", "checkout", cwd=tmp_path)
    checkout = tmp_path / "checkout"
    git("commit", "--allow-empty", "-m", "first", cwd=checkout)
    (checkout / "_site").mkdir()
    for version, text in (
        ("v1", "one"),
        ("latest", "two"),
        ("latest", "three"),
        ("latest", "three"),
    ):
        for name in ("index.html", "404.html"):
            (checkout / "_site" / name).write_text(text)
        done = shell(f"bash {ROOT}/.github/publish_book.sh {version}", cwd=checkout)
        assert done.returncode == 0, done.stderr
    origin = tmp_path / "origin"
    assert git("show", "gh-pages:v1/index.html", cwd=origin) == "one"
    assert git("show", "gh-pages:latest/index.html", cwd=origin) == "three"
    assert git("show", "gh-pages:404.html", cwd=origin) == "three"
    assert "latest/" in git("show", "gh-pages:index.html", cwd=origin)
    assert git("rev-list", "--count", "gh-pages", cwd=origin).strip() == "3"


def test_only_the_tag_of_the_version_is_released(tmp_path):
    (step,) = (script for script in runs("release") if "notes.md" in script and "awk" in script)
    version = re.search(r'^version = "(.+)"$', read("pyproject.toml"), re.MULTILINE)[1]
    (tmp_path / "pyproject.toml").write_text(read("pyproject.toml"))

    def released(tag, part, changes="- New.\n"):
        older = "## 0.0.1 (2026-01-01)\n\n- Old.\n"
        (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n{part}\n\n{changes}\n{older}")
        return shell(step, cwd=tmp_path, GITHUB_REF_NAME=tag).returncode == 0

    assert not released("v9.9.9", f"## {version} (2026-01-31)")
    assert not released(f"v{version}", f"## {version} (unreleased)")
    assert not released(f"v{version}", f"## {version}1 (2026-01-31)")
    assert not released(f"v{version}", f"## {version} (2026-01-31)", changes="")
    assert released(f"v{version}", f"## {version} (2026-01-31)")
    assert (tmp_path / "notes.md").read_text().split("\n") == ["", "- New.", "", ""]


def test_the_archive_of_data_is_all_of_it(tmp_path):
    (step,) = (script for script in runs("release") if "git archive" in script)
    git("init", cwd=tmp_path)
    for name in ("data/a.csv", "LICENSE-text", "CITATION.cff", "other"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x\n")
    git("add", ".", cwd=tmp_path)
    git("commit", "-m", "first", cwd=tmp_path)
    assert shell(step, cwd=tmp_path, GITHUB_REF_NAME="v1").returncode == 0
    listed = shell("tar tzf labkernels-data-v1.tar.gz", cwd=tmp_path).stdout.split()
    assert {name for name in listed if not name.endswith("/")} == {
        f"labkernels-data-v1/{name}" for name in ("data/a.csv", "LICENSE-text", "CITATION.cff")
    }
