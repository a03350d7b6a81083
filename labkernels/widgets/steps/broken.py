"""decode_mma with bugs that the reader can switch on: the module of the stepper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labkernels.kernels.operation import BitCase
from labkernels.measure.mutants import decode as registry
from labkernels.measure.mutants.mutant import Edit
from labkernels.widgets.steps.stepped import DECODE_MMA

NAME = "broken"  # of the asset
KERNEL = DECODE_MMA.kernel
_PIPELINE, _SOURCE = "decode/pipeline.cuh", "decode/mma/kernel.cuh"
_SOFTMAX, _SPLITS = registry.SOFTMAX, registry.SPLITS
_SWITCH = """extern "C" { int lab_off = 0; \
__attribute__((export_name("lab_take_out"))) void lab_take_out(int n) { lab_off = n; } } \
""".replace("\\\n", "")
_IS_OFF = '({{ extern int off __asm__("lab_off"); off == {}; }})'


@dataclass(frozen=True)
class Part:
    """A bug that can be switched on: what the page calls it, and its place.

    pattern: has one match in the file; the match becomes `by` while the condition OFF holds.
    source: where a bug like it was reported. typed: the bug as a reader would type it.
    """

    words: str
    file: str
    pattern: str
    by: str
    typed: Edit
    source: str = ""

    @property
    def edit(self) -> Edit:
        """The kernel in which the bug is always on."""
        return Edit(self.file, self.pattern, self.by.replace("OFF", "true"))


def _missing(words: str, file: str, statement: str) -> Part:
    typed = Edit(file, statement, "")
    return Part(f"Left out: {words}", file, statement, r"if (!OFF) \1", typed)


def _known(name: str, file: str, pattern: str, by: str) -> Part:
    """Return a bug with the words and the source that the registry has for it."""
    mutant = registry.MUTANTS[name]
    return Part(f"Wrong: {mutant.bug}", file, pattern, by, mutant.edits[KERNEL], mutant.source)


def _one_more(words: str, file: str, pattern: str, by: str) -> Part:
    """Return a bug of a count to which OFF is added."""
    edit = Edit(file, pattern, by.replace("OFF", "1"))
    return Part(f"Out of bounds: {words}", file, pattern, by, edit)


PARTS = (
    _missing("the barrier after Q is loaded", _SOURCE, r"(sync_block\(\);)(?= +// Q is loaded)"),
    _missing("the wait for K", _PIPELINE, r"(cp_async_wait<2 \* Stages - 2>\(\);)"),
    _missing(
        "the warp's barrier after K has come", _PIPELINE, r"(sync_warp\(\);)(?= +// K of this step)"
    ),
    _missing(
        "the barrier before the warps merge", _PIPELINE, r"(sync_block\(\);)(?= +// no warp uses)"
    ),
    _missing(
        "the barrier after the warps' States are stored",
        _SPLITS,
        r"(sync_block\(\);)(?= +// every warp's State)",
    ),
    _one_more(
        "the page table is read one entry too far",
        registry.PAGES,
        r"slot < max_pages",
        "slot < max_pages + OFF",
    ),
    _one_more(
        "V's stages are counted as one more than there are",
        _PIPELINE,
        r"\(v_stage \+ Stages - 2\) % \(Stages - 1\)",
        r"(v_stage + Stages - 2) % (Stages - 1 + OFF)",
    ),
    _known(
        "dropped key",
        registry.PAGES,
        r"end < kv_len \? end : kv_len",
        r"\g<0> - (end >= kv_len && OFF)",
    ),
    _known("padding in the denominator", _SOURCE, r"if \(pipeline\.ragged\(\)", r"\g<0> && !OFF"),
    _known(
        "duplicated lane index",
        _SOURCE,
        r"(?<=b \* 16 \+ \(lane & 7\)) \+ \(lane >> 4\) \* 8",
        r" + (OFF ? 0 : lane >> 4) * 8",
    ),
    _known("missing rescale", _SOFTMAX, r"if \(warp_any\(", "if (!OFF && warp_any("),
    _known("head mix-up", registry.PAGES, r"(?<=p\.k_pool\) \+ )w\.kv_head", "(w.kv_head ^ OFF)"),
)


def case() -> BitCase:
    """Return the launch of the kernel in which PARTS[n] is on while lab_off is n + 1."""
    edits = [
        Edit(part.file, part.pattern, part.by.replace("OFF", _IS_OFF.format(number)))
        for number, part in enumerate(PARTS, 1)
    ]
    return DECODE_MMA.case(edits, also=_SWITCH)


def asset() -> dict[str, Any]:
    """Return what a stepper needs of the kernel, and its parts."""
    parts = [{"words": part.words, "source": part.source} for part in PARTS]
    return {**DECODE_MMA.asset(case()), "parts": parts}
