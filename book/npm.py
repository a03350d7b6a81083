"""Installs what pages take from npm, as book/package-lock.json has it, and bundles a script."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from notebook_io import ROOT

LISTS = ("package.json", "package-lock.json")
FOLDER = ROOT / "_build" / "npm"


def is_available() -> bool:
    """Return whether npm is installed."""
    return shutil.which("npm") is not None


def installed() -> Path:
    """Return the folder node_modules; the first call for a lock downloads the packages.

    Raises: RuntimeError with npm's words.
    """
    lists = [ROOT / "book" / name for name in LISTS]
    key = hashlib.sha256(b"".join(path.read_bytes() for path in lists)).hexdigest()
    mark = FOLDER / "key"
    if not mark.exists() or mark.read_text() != key:
        FOLDER.mkdir(parents=True, exist_ok=True)
        for path in lists:
            shutil.copy(path, FOLDER)
        _run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"])
        mark.write_text(key)
    return FOLDER / "node_modules"


def bundle(script: Path) -> str:
    """Return a script and all that it imports as one, which a page opened from a disk may load.

    Raises: RuntimeError with the words of npm or esbuild.
    """
    modules = installed()
    options = ["--bundle", "--minify", "--format=iife", "--target=es2023", "--log-level=error"]
    return _run([str(modules / ".bin" / "esbuild"), str(script), *options], NODE_PATH=str(modules))


def licences() -> str:
    """Return the licence of each package, with the packages that it covers."""
    modules, covered = installed(), dict[str, list[str]]()
    for path in sorted(modules.rglob("LICENSE*")):
        name = str(path.parent.relative_to(modules))
        if "esbuild" not in name:  # which makes pages, and is in none
            covered.setdefault(path.read_text().strip(), []).append(name)
    return "\n\n\n".join(f"{', '.join(names)}\n\n{text}" for text, names in covered.items())


def _run(command: list[str], **environment: str) -> str:
    own = {**os.environ, **environment}
    answer = subprocess.run(
        command, cwd=FOLDER, env=own, capture_output=True, text=True, check=False
    )
    if answer.returncode != 0:
        raise RuntimeError(f"{Path(command[0]).name} fails: {answer.stderr[-2000:]}")
    return answer.stdout
