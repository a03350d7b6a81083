"""Writes the files that the pages' widgets load: one script, its style, and a file per kernel."""

import json
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import node
import npm
import page_assignments
import page_compiler
import page_python

from labkernels.places import WIDGETS
from labkernels.widgets import kernels, program
from labkernels.widgets.kernels import Offer


class BitsDiffer(RuntimeError):
    """A kernel in a page computes other bits than the GPU did; the text names the kernel."""


def write(folder: Path) -> str:
    """Writes lab.js, widgets.css and the assets into a folder; returns what was checked, in words.

    Raises: BitsDiffer; RuntimeError if Python cannot be fetched; what the compiler raises.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(1) as pool:
        by_click = pool.submit(_write_by_click, folder)
        offers = kernels.offers()
        assets = kernels.assets(offers)
        said = check(offers, assets)
        (folder / "lab.js").write_text(bundle(offers))
        shutil.copyfile(WIDGETS / "widgets.css", folder / "widgets.css")
        others = {
            name: json.dumps(make(), separators=(",", ":")) for name, make in program.OTHERS.items()
        }
        for name, text in {**assets, **others}.items():
            (folder / f"{name}.js").write_text(
                f"(globalThis.lab_assets ??= {{}})[{name!r}] = {text};\n"
            )
        page_assignments.write(folder)
        return f"{said}; {by_click.result()}"


def _write_by_click(folder: Path) -> str:
    """Writes Python, the compiler and the editor; returns what was written, in words.

    On a machine without a cache, xz takes one core for a minute.
    """
    said = page_python.write(folder)
    if not npm.is_available():
        return f"{said}; no editor and no compiler, since npm is not installed"
    n_bytes = page_compiler.write(folder)
    script = npm.bundle(WIDGETS / "edit" / "edit.mjs", lab_compiler_bytes=n_bytes)
    (folder / "edit.js").write_text(script)
    (folder / "licences.txt").write_text(npm.licences())
    return f"{said}\ncompiler in pages: {n_bytes / 1e6:.1f} MB"


def bundle(offers: tuple[Offer, ...]) -> str:
    """Returns one script of all modules, which a page opened from a disk may load too."""
    return f"({program.program(offers)})().begin();\n"


def check(offers: tuple[Offer, ...], assets: Mapping[str, str]) -> str:
    """Compares every kernel's bits with those of the GPU, if node is installed to run them."""
    if not node.is_available():
        return "kernels in pages: not run, since node is not installed"
    results = node.run_recorded(assets)
    for offer in offers:
        found = results[offer.name]
        if found["error"] is not None or found["sum"] != offer.checksum:
            words = found["error"] or f"SHA-256 {found['sum']}, recorded {offer.checksum}"
            raise BitsDiffer(f"{offer.name} in a page: {words}")
    return f"kernels in pages: {len(offers)}, each with the recorded bits"
