"""A kernel whose reader may break it and step through it: one checked module, with switches."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass

from labkernels.cuda.compiler.cache import MUTANTS, atomic_write, cache_dir, content_key
from labkernels.cuda.host.build import ex2_coefficients
from labkernels.cuda.host.compiler import INCLUDE_DIRS
from labkernels.cuda.wasm import compiler
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.kernel import CudaKernel
from labkernels.kernels.operation import BitCase
from labkernels.kernels.registry import discover
from labkernels.measure.mutants import decode as registry
from labkernels.measure.mutants.mutant import Edit
from labkernels.widgets import smem_map
from labkernels.widgets.launches import page_launch, rounding

NAME = "broken"  # of the asset
KERNEL, HEAD_DIM, DTYPE, KEYS = "decode_mma", 64, "fp16", 200
_PIPELINE, _SOURCE = "decode/pipeline.cuh", "decode/mma/kernel.cuh"
_SOFTMAX, _SPLITS = registry.SOFTMAX, registry.SPLITS
_READ = (_SOURCE, _PIPELINE, registry.PAGES, _SOFTMAX, _SPLITS)  # what a stepper quotes

_BEGIN = "namespace decode_mma {"
_SWITCH = """extern "C" { int lab_off = 0; \
__attribute__((export_name("lab_take_out"))) void lab_take_out(int n) { lab_off = n; } } \
""".replace("\\\n", "")
_IS_OFF = '({{ extern int off __asm__("lab_off"); off == {}; }})'
# The stepper shows the softmax of a row, which lies in registers: the kernel tells it.
_TOLD = Edit(
    _SOURCE,
    r"accumulate<C, P>\(o, s, pipeline\.v\(\)\);",
    r"\g<0> extern void told(const float*, const float*, const float*) "
    r'__asm__("lab_softmax"); told(softmax.m, softmax.l, o[0]);',
)


@dataclass(frozen=True)
class Part:
    """A bug that can be switched on: what the page calls it, and its place.

    pattern: has one match in the file, which becomes `by` while the condition OFF holds.
    source: where a bug like it was reported.
    """

    words: str
    file: str
    pattern: str
    by: str
    source: str = ""

    @property
    def edit(self) -> Edit:
        """The kernel in which the bug is always on."""
        return Edit(self.file, self.pattern, self.by.replace("OFF", "true"))


def _missing(words: str, file: str, statement: str) -> Part:
    return Part(f"Left out: {words}", file, statement, r"if (!OFF) \1")


def _known(name: str, file: str, pattern: str, by: str) -> Part:
    """A bug of the registry, whose words and source it has."""
    mutant = registry.MUTANTS[name]
    return Part(f"Wrong: {mutant.bug}", file, pattern, by, mutant.source)


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
    Part(
        "Out of bounds: the page table is read one entry too far",
        registry.PAGES,
        r"slot < max_pages",
        "slot < max_pages + OFF",
    ),
    Part(
        "Out of bounds: V's stages are counted as one more than there are",
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


def broken_kernel() -> CudaKernel:
    """Return the kernel with part n broken while the variable lab_off is n + 1.

    Raises: ValueError for a pattern that does not stand in its file once.
    """
    texts = {name: original(name) for name in _READ}
    edits = [
        Edit(part.file, part.pattern, part.by.replace("OFF", _IS_OFF.format(number)))
        for number, part in enumerate(PARTS, 1)
    ]
    for edit in (*edits, _TOLD):
        texts[edit.file], found = re.subn(edit.pattern, edit.by, texts[edit.file])
        if found != 1:
            raise ValueError(f"pattern = {edit.pattern!r}, found {found} times, allowed: 1")
    texts[_SOURCE] = texts[_SOURCE].replace(_BEGIN, f"{_SWITCH}{_BEGIN}", 1)
    folder = cache_dir() / MUTANTS / content_key(*texts, *texts.values())
    for name, text in texts.items():
        if not (folder / name).exists() or (folder / name).read_text() != text:
            atomic_write(folder / name, text.encode())
    return discover()[KERNEL].with_overlay(folder)


def case() -> BitCase:
    """Return the launch that is broken: one request on two KV heads."""
    kernel = broken_kernel()
    instance = kernel.instance(
        kernel.shape(dtype=DTYPE, head_dim=HEAD_DIM, group=4), kernel.policies[0]
    )
    return BitCase(instance, Decode((KEYS,), 8, 2, HEAD_DIM, 16, DTYPE), {"kernel": kernel})


def asset() -> dict[str, object]:
    """Return the checked module, its launch, its parts, its shared memory and its sources."""
    broken = case()
    launch = page_launch(broken)
    module = compiler.build(launch.specialization, checks=True, trace=True)
    plan = {**launch.plan, "rounding": rounding(broken.instance), "sha256": None}
    return {
        "module": {
            "wasm": base64.b64encode(module.wasm).decode(),
            "ex2": base64.b64encode(ex2_coefficients().tobytes()).decode(),
            "places": dict(module.places),
        },
        "cases": {"recorded": plan},
        "parts": [{"words": part.words, "source": part.source} for part in PARTS],
        "maps": smem_map.maps(broken.instance),
        "group": broken.workload.q_heads // broken.workload.kv_heads,
        "sources": {"/".join(n.split("/")[-2:]): original(n).splitlines() for n in _READ},
    }


def original(name: str) -> str:
    """The text of a file of the include path."""
    path = next(path for root in INCLUDE_DIRS if (path := root / name).exists())
    return path.read_text()
