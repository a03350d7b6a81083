"""The workflows name only what is there, and the steps that can be run here do what they say."""

import os
import re
import subprocess
from itertools import chain

import yaml

from labkernels import cli
from tests.repo.files import ROOT, read

FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in sorted(FOLDER.glob("*.yml"))}


def test_steps_and_hooks_name_what_is_there():
    scripts = "\n".join(all_runs())
    tasks = set(re.findall(r"\bmake ([\w./]+)", scripts))
    assert {"lint", "book", "record", ".venv/installed"} <= tasks
    assert tasks <= set(re.findall(r"^([\w./]+):", read("Makefile"), re.MULTILINE))
    commands = set(re.findall(r"^(?:\.venv/bin/)?labkernels (\w+)", scripts, re.MULTILINE))
    assert commands
    assert commands <= set(cli.commands())
    repos = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]
    (hooks,) = (repo["hooks"] for repo in repos if repo["repo"] == "local")
    named = [word for hook in hooks for word in hook["entry"].split() if word.startswith("tests/")]
    assert named
    named += re.findall(r"\bbash (\S+)", scripts)
    assert [path for path in named if not (ROOT / path).exists()] == []


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
