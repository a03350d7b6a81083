"""The data of the editor in a page: texts of kernels, mistakes to plant, launches with checks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from labkernels import hardware
from labkernels.measure import resources
from labkernels.measure.mutants.mutant import KERNEL, Edit
from labkernels.widgets import kernels, ledgers, small
from labkernels.widgets.launches import page_launch, rounding
from labkernels.widgets.steps import broken, smem_map
from labkernels.widgets.steps.stepped import BASIC, DECODE_MMA, OTHERS, Stepped, original

NAME = "editing"  # of the asset
EDITED = ("decode_mma", "decode_fma", "prefill_mma", "prefill_wgmma_basic", "prefill_wgmma")
GPU, ARCH = "h200", "sm_90a"  # whose limits, and whose compiler's report, are shown


def data() -> dict[str, Any]:
    """Return all that edit_kernel.mjs shows before a compiler is loaded, as JSON."""
    offers = {offer.kernel.name: offer for offer in reversed(kernels.offers())}  # the first of each
    steps = {of.kernel: of for of in (DECODE_MMA, BASIC)} | OTHERS
    gpu = ledgers.limits(hardware.gpu(GPU))
    entries = [_entry(offers[name], steps[name]) for name in EDITED]
    return {"gpu": gpu, "kernels": entries + [each.entry() for each in small.OFFERED]}


def _entry(offer: kernels.Offer, step: Stepped) -> dict[str, Any]:
    """Return a kernel's texts, and what a page knows of the instance that it compiles.

    launch: a small one, for a run with checks. told and rows: where the kernel tells the softmax of
    its rows; a tile that is not the stepper's has other rows.
    """
    instance = offer.recorded.instance
    launch = page_launch(replace(offer.recorded, workload=step.workload))
    known = step.case().instance.tile == instance.tile
    return {
        "offer": offer.name,
        "idea": offer.kernel.idea,
        "files": {name: original(name) for name in step.read},
        "launch": {**launch.plan, "rounding": rounding(instance), "sha256": None},
        "told": [step.told.file, *_changed(step.told)] if known else None,
        "rows": [asdict(row) for row in step.rows()] if known else [],
        "maps": smem_map.maps(instance),
        "barriers": smem_map.barriers(instance),
        "plants": list(plants()) if offer.kernel.name == broken.KERNEL else [],
        "budget": ledgers.entry(offer.kernel, instance),
        "reported": resources.recorded(instance, arch=ARCH),
    }


def plants() -> Iterator[dict[str, Any]]:
    """Yield the mistakes of broken.PARTS as a reader would type them: old lines, and new ones."""
    for part in broken.PARTS:
        edit = part.typed
        file = broken.DECODE_MMA.read[0] if edit.file == KERNEL else edit.file
        old, new = _changed(replace(edit, file=file))
        new = new if new.strip() else ""
        yield {"words": part.words, "source": part.source, "file": file, "old": old, "new": new}


def _changed(edit: Edit) -> tuple[str, str]:
    """Return the whole lines that an edit changes, before and after it."""
    text = original(edit.file)
    found = re.search(edit.pattern, text, re.DOTALL)
    if found is None:
        raise ValueError(f"pattern = {edit.pattern!r}, not found in {edit.file}")
    begin = text.rfind("\n", 0, found.start()) + 1
    old = text[begin : text.index("\n", found.end())]
    new = re.sub(edit.pattern, edit.by, text, count=1, flags=re.DOTALL)[begin:]
    return old, new[: len(new) - len(text) + begin + len(old)]
