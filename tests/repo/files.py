"""The repository's own files, for the tests that read them."""

import subprocess
import tempfile
from functools import cache
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


@cache
def project_files() -> tuple[Path, ...]:
    """Return every file that git tracks or would track, as paths relative to the root.

    For a tree without .git, such as an archive, return those that an empty repository would track.
    """
    with tempfile.TemporaryDirectory() as empty:
        of = [f"--work-tree={ROOT}"]
        if not (ROOT / ".git").exists():
            subprocess.run(["git", "init", "-q", "--bare", empty], check=True)
            of.append(f"--git-dir={empty}")
        names = _listed(*of)
    paths = {Path(name) for name in names.split("\0") if name}
    return tuple(sorted(path for path in paths if (ROOT / path).is_file()))


def _listed(*of: str) -> str:
    command = ["git", *of, "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def with_suffix(*suffixes: str) -> list[Path]:
    """Return the project files with one of these suffixes."""
    return [path for path in project_files() if path.suffix in suffixes]


def read(path: Path | str) -> str:
    """Return the text of a project file."""
    return (ROOT / path).read_text(encoding="utf-8")


def text_files() -> list[Path]:
    """Return the project files that hold UTF-8 text."""
    found = []
    for path in project_files():
        try:
            read(path)
        except UnicodeDecodeError:
            continue
        found.append(path)
    return found


def chapters(*captions):
    """Return the scripts of the chapters in parts of the book."""
    parts = yaml.safe_load(read("book/_toc.yml"))["parts"]
    listed = [entry["file"] for p in parts if p["caption"] in captions for entry in p["chapters"]]
    return [ROOT / f"{file}.py" for file in listed if file.startswith("notebooks/")]
