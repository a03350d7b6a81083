"""The JavaScript of the widgets as one program, and the data that it asks for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkernels.places import WIDGETS
from labkernels.widgets import batches, bits, editing, ledgers, small, tolerances, writing
from labkernels.widgets.kernels import KEYS, RECORDED, Offer
from labkernels.widgets.steps import broken, stepped

LAST = "book"  # the module that a page begins with
# The functions that make the assets other than the kernels of "Run this kernel".
OTHERS: dict[str, Callable[[], dict[str, Any]]] = {
    "batches": batches.data,
    "bits": bits.data,
    "budget": ledgers.data,
    editing.NAME: editing.data,
    "tolerances": tolerances.data,
    writing.NAME: writing.data,
    broken.NAME: broken.asset,
    **{f"step.{name}": of.whole_asset for name, of in stepped.OTHERS.items()},
    **{each.asset_name: each.asset for each in small.OFFERED},
}
_IMPORT = re.compile(r'^import (\{[^}]*\}) from "(\.{1,2}/(?:[\w.]+/)*(\w+)\.mjs)";$', re.MULTILINE)
_COMMENT = re.compile(r"/\*\*[\s\S]*?\*/[ \t]*|^[ \t]*//.*\n", re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function\*?|class|const) (\w+))", re.MULTILINE)


def modules(last: Path = WIDGETS / f"{LAST}.mjs") -> list[Path]:
    """Return the files of the program, each after those that it imports.

    >>> [path.stem for path in modules()][-1]
    'book'
    """
    found: dict[Path, None] = {}
    for _, path, _ in _IMPORT.findall(last.read_text()):
        found |= dict.fromkeys(modules((last.parent / path).resolve()))
    return [*found, last]


def module(offers: tuple[Offer, ...]) -> str:
    """Return the program as an ES module with the `render` that anywidget calls."""
    return f"const lab = ({program(offers)})();\nexport default {{ render: lab.render }};\n"


def program(offers: tuple[Offer, ...]) -> str:
    """Return all modules as a JavaScript function that returns the exports of the last one."""
    body = "".join(_module(path.stem, path.read_text()) for path in modules())
    steps = [{"kernel": broken.KERNEL, "asset": broken.NAME}]
    steps += [{"kernel": name, "asset": f"step.{name}"} for name in stepped.OTHERS]
    known = {"offers": [_row(offer) for offer in offers], "steps": steps}
    data = json.dumps(known | {"writing": {"mb": writing.MB, "prompt": writing.PROMPT}})
    head = f'function lab_bundle() {{\n"use strict";\nconst lab_data = {data};\n'
    return f"{head}{body}return {LAST}_module;\n}}"


def _module(name: str, text: str) -> str:
    """Return a module as a JavaScript function that is called once and returns its exports."""
    text = _COMMENT.sub("", text)  # a page carries no more than it runs
    exports = ", ".join(found[2] for found in _EXPORT.finditer(text))
    inside = _EXPORT.sub(r"\1", _IMPORT.sub(r"const \1 = \3_module;", text))
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
