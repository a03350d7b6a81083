"""Installs what pages take from npm, as book/package-lock.json has it, and bundles a script."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from notebook_io import ROOT

LISTS = ("package.json", "package-lock.json")
_LICENCE_OF_CLANG = """\
Apache License 2.0 with LLVM Exceptions: the README of the package says that it is covered by the
Apache 2 license, which is the same as the (base) LLVM license. Its package.json names ISC. The
package holds neither text. The Apache License 2.0 is that of this book's code.

---- LLVM Exceptions to the Apache 2.0 License ----

As an exception, if, as a result of your compiling your source code, portions of this Software are
embedded into an Object form of such source code, you may redistribute such embedded portions in
such Object form without complying with the conditions of Sections 4(a), 4(b) and 4(d) of the
License.

In addition, if you combine or link compiled forms of this Software with software that is licensed
under the GPLv2 ("Combined Software") and if a court of competent jurisdiction determines that the
patent provision (Section 3), the indemnity provision (Section 9) or other Section of the License
conflicts with the conditions of the GPLv2, you may retroactively and prospectively choose to deem
waived or otherwise exclude such Section(s) of the License, but only in their entirety and only with
respect to the Combined Software."""
# Its package.json names MIT, and its script the authors; the package does not hold MIT's text.
XZ = "xz-decompress/dist/package/xz-decompress.min.js"
_MIT = "@codemirror/state/LICENSE"
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


def bundle(script: Path, **numbers: int) -> str:
    """Return a script and all that it imports as one, which a page opened from a disk may load.

    numbers: what names stand for in the scripts.

    Raises: RuntimeError with the words of npm or esbuild.
    """
    modules = installed()
    options = ["--bundle", "--minify", "--format=iife", "--target=es2023", "--log-level=error"]
    options += [f"--define:{name}={number}" for name, number in numbers.items()]
    return _run([str(modules / ".bin" / "esbuild"), str(script), *options], NODE_PATH=str(modules))


def licences() -> str:
    """Return the licence of each package, with the packages that it covers."""
    modules, covered = installed(), dict[str, list[str]]()
    for path in sorted(modules.rglob("LICENSE*")):
        name = str(path.parent.relative_to(modules))
        if "esbuild" not in name:  # which makes pages, and is in none
            covered.setdefault(path.read_text().strip(), []).append(name)
    covered[_LICENCE_OF_CLANG] = ["@yowasp/clang"]
    authors = (modules / XZ).read_text().partition("*/")[0].removeprefix("/*!")
    permission = (modules / _MIT).read_text().partition("and others")[2]
    covered[f"MIT License\n{authors}{permission}".strip()] = ["xz-decompress"]
    return "\n\n\n".join(f"{', '.join(names)}\n\n{text}" for text, names in covered.items())


def _run(command: list[str], **environment: str) -> str:
    own = {**os.environ, **environment}
    answer = subprocess.run(
        command, cwd=FOLDER, env=own, capture_output=True, text=True, check=False
    )
    if answer.returncode != 0:
        raise RuntimeError(f"{Path(command[0]).name} fails: {answer.stderr[-2000:]}")
    return answer.stdout
