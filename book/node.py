"""Runs JavaScript of the pages by node, for tests and for the book's check of bits."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labkernels.cuda.compiler import cache
from labkernels.places import WIDGETS

PAGE = WIDGETS
CHECK = PAGE / "check.mjs"


def is_available() -> bool:
    """Return whether node is installed."""
    return shutil.which("node") is not None


def run(script: Path, *arguments: str | Path, given: Any = None) -> Any:
    """Return what a script prints as JSON; `given` is its input, as JSON.

    Raises: RuntimeError with the script's words.
    """
    command = [shutil.which("node") or "node", str(script), *map(str, arguments)]
    text = json.dumps(given)
    answer = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise RuntimeError(f"{script.name} fails: {answer.stderr[:2000]}")
    return json.loads(answer.stdout)


def run_recorded(assets: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the result of each asset's recorded case, by name; the cache keeps the results."""
    scripts = [path.read_bytes() for path in sorted(PAGE.rglob("*.mjs"))]
    results = {}
    for name, text in assets.items():

        def make(_: Path, name: str = name, text: str = text) -> bytes:
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, f"{name}.json").write_text(text)
                return json.dumps(run(CHECK, folder)[name]).encode()

        key = cache.content_key(name, text, *scripts)
        results[name] = json.loads(cache.entry(f"wasmrun-{key}.json", make).content)
    return results
