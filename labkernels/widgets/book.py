"""Writes the files that the book's pages load: one script, its style, and a file per kernel."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from labkernels.widgets import bits, kernels, ledgers, node, tolerances
from labkernels.widgets.kernels import KEYS, RECORDED, Offer
from labkernels.widgets.steps import broken, stepped

# In an order in which each module comes after those that it imports.
MODULES = (
    "machine/formats",
    "machine/random",
    "machine/machine",
    "machine/own",
    "machine/launches",
    "machine/attention",
    "machine/trace",
    "machine/jobs",
    "elements",
    "guess",
    "bits/arithmetic",
    "bits/numbers",
    "bits/products",
    "bits/bits",
    "budget/occupancy",
    "budget/formula",
    "budget/roofline",
    "budget/budget",
    "own_form",
    "run_kernel",
    "step/smem_map",
    "step/fragments",
    "step/tables",
    "step/stepper",
    "step/step_kernel",
    "break_kernel",
    "read/figure",
    "read/sort",
    "read/tolerance",
    "book",
)
# The functions that make the assets other than the kernels of "Run this kernel".
OTHERS: dict[str, Callable[[], dict[str, Any]]] = {
    "bits": bits.data,
    "budget": ledgers.data,
    "tolerances": tolerances.data,
    broken.NAME: broken.asset,
    **{f"step.{name}": of.whole_asset for name, of in stepped.OTHERS.items()},
}
_IMPORT = re.compile(r'^import (\{[^}]*\}) from "\.{1,2}/(?:[\w.]+/)*(\w+)\.mjs";$', re.MULTILINE)
_COMMENT = re.compile(r"/\*\*[\s\S]*?\*/[ \t]*|^[ \t]*//.*\n", re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function|class|const) (\w+))", re.MULTILINE)


class BitsDiffer(RuntimeError):
    """A kernel in a page computes other bits than the GPU did; the text names the kernel."""


def write(folder: Path) -> str:
    """Write lab.js, widgets.css and the assets into a folder; return what was checked, in words.

    Raises: BitsDiffer; what the compiler raises.
    """
    offers = kernels.offers()
    assets = kernels.assets(offers)
    said = _check(offers, assets)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lab.js").write_text(bundle(offers))
    shutil.copyfile(node.PAGE / "widgets.css", folder / "widgets.css")
    texts = {**assets, **{name: _packed(make()) for name, make in OTHERS.items()}}
    for name, text in texts.items():
        (folder / f"{name}.js").write_text(
            f"(globalThis.lab_assets ??= {{}})[{name!r}] = {text};\n"
        )
    return said


def bundle(offers: tuple[Offer, ...]) -> str:
    """Return one script of all modules, which a page opened from a disk may load too."""
    return f"({_program(offers)})().begin();\n"


def module(offers: tuple[Offer, ...]) -> str:
    """Return the same as an ES module with the `render` that anywidget calls."""
    return f"const lab = ({_program(offers)})();\nexport default {{ render: lab.render }};\n"


def _packed(data: dict[str, object]) -> str:
    return json.dumps(data, separators=(",", ":"))


def _program(offers: tuple[Offer, ...]) -> str:
    """Return all modules as a JavaScript function that returns the exports of the last one."""
    body = "".join(_module(name, (node.PAGE / f"{name}.mjs").read_text()) for name in MODULES)
    steps = [{"kernel": broken.KERNEL, "asset": broken.NAME}]
    steps += [{"kernel": name, "asset": f"step.{name}"} for name in stepped.OTHERS]
    data = json.dumps({"offers": [_row(offer) for offer in offers], "steps": steps})
    head = f'function lab_bundle() {{\n"use strict";\nconst lab_data = {data};\n'
    return f"{head}{body}return book_module;\n}}"


def _module(name: str, text: str) -> str:
    """Return a module as a JavaScript function that is called once and returns its exports."""
    name = name.split("/")[-1]
    text = _COMMENT.sub("", text)  # a page carries no more than it runs
    exports = ", ".join(found[2] for found in _EXPORT.finditer(text))
    inside = _EXPORT.sub(r"\1", _IMPORT.sub(r"const \1 = \2_module;", text))
    return f"const {name}_module = (() => {{\n{inside}return {{ {exports} }};\n}})();\n"


def _row(offer: Offer) -> dict[str, Any]:
    """Return what the form knows of a kernel before the kernel is loaded."""
    instance, w = offer.recorded.instance, offer.recorded.workload
    return {
        "name": offer.name,
        "kernel": instance.kernel,
        "idea": offer.kernel.idea,
        "dtype": instance.dtype,
        "head_dim": instance.head_dim,
        "tensor_cores": instance.policy.tensor_cores,
        "keys": [RECORDED, *map(str, KEYS[offer.kernel.operation])],
        "recorded": f"{len(w.kv_lens)} requests of up to {max(w.kv_lens)}",
    }


def _check(offers: tuple[Offer, ...], assets: Mapping[str, str]) -> str:
    """Compare every kernel's bits with those of the GPU, if node is installed to run them."""
    if not node.is_available():
        return "kernels in pages: not run, since node is not installed"
    results = node.run_recorded(assets)
    for offer in offers:
        found = results[offer.name]
        if found["error"] is not None or found["sum"] != offer.checksum:
            words = found["error"] or f"SHA-256 {found['sum']}, recorded {offer.checksum}"
            raise BitsDiffer(f"{offer.name} in a page: {words}")
    return f"kernels in pages: {len(offers)}, each with the recorded bits"
