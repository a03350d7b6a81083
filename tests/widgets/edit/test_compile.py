"""A page compiles a kernel to what the book's compiler makes, and places what is wrong in it."""

import base64
import gzip
from pathlib import Path

import node
import npm
import numpy as np
import page_compiler
import pytest

from labkernels.cuda.compiler import cache
from labkernels.cuda.host.build import ex2_coefficients
from labkernels.cuda.wasm import compiler, coroutine
from labkernels.widgets import editing
from labkernels.widgets.kernels import RECORDED
from labkernels.widgets.launches import page_launch, rounding

SCRIPTS = Path(__file__).parents[1] / "scripts"
KERNEL, SOURCE = "decode_mma", "decode/mma/kernel.cuh"
PASSES = ("inline_what_waits", "numbered_accesses", "suspendable")


@pytest.fixture(scope="module")
def clang(needs_node):
    if not npm.is_available():
        pytest.skip("npm is not installed")
    try:
        return npm.installed() / "@yowasp/clang/gen/llvm.core.wasm"
    except RuntimeError as error:
        pytest.skip(f"npm's packages are not installed: {error}")


@pytest.fixture(scope="module")
def built(clang, needs_zig, offer):
    """Return a function that compiles edits of the kernel, and runs what comes of them."""
    sources = page_compiler.sources((KERNEL,))["sources"]
    for kind in ("plain", "checked"):
        for what, data in sources[kind].items():
            sources[kind][what] = base64.b64encode(gzip.decompress(data)).decode()
    plan = page_launch(dict(offer.cases())[RECORDED]).plan
    given = {
        "sources": sources,
        "kernel": KERNEL,
        "ex2": base64.b64encode(ex2_coefficients().tobytes()).decode(),
        "plan": {**plan, "rounding": rounding(offer.recorded.instance), "sha256": None},
    }

    def compiled(*jobs):
        rows = [{"edits": edits, "checked": checked} for edits, checked in jobs]
        script = SCRIPTS / "compile_of_edits.mjs"
        return node.run(script, clang, given=given | {"jobs": rows})

    return compiled


def edited(old, new):
    """Return the kernel's text with an edit, and the edit's line."""
    before, after = editing.original(SOURCE).split(old)
    return {SOURCE: before + new + after}, before.count("\n") + 1


def test_passes_of_a_page_are_those_of_the_book(
    needs_node, needs_zig, offer, monkeypatch, tmp_path
):
    given, made = {}, {}

    def record(name, original):
        def recorded(ir):
            given[name], made[name] = ir, original(ir)
            return made[name]

        monkeypatch.setattr(coroutine, name, recorded)

    for name in PASSES:
        record(name, getattr(coroutine, name))
    kept = cache.entry

    def entry(name, make):  # a module is made anew, of parts that the cache may keep
        is_module = name.startswith("wasm-")
        return cache.Entry(tmp_path, make(tmp_path)) if is_module else kept(name, make)

    monkeypatch.setattr(cache, "entry", entry)
    compiler.build(page_launch(offer.recorded).specialization, checks=True, trace=True)
    found = node.run(SCRIPTS / "coroutine_of_ir.mjs", given=given)
    for name in PASSES:
        answer = tuple(found[name]) if isinstance(found[name], list) else found[name]
        assert answer == made[name], name


@pytest.mark.long  # in a browser, tests/site sees an error at its line
def test_error_and_warning_stand_at_the_line_of_the_edit(built):
    typo, line = edited("sync_block();  // Q", "sync_blok();  // Q")
    odd, warned = edited("pipeline.prefetch();", "work.split == 0;")
    wrong, right = built((typo, False), (odd, False))
    error = next(d for d in wrong["diagnostics"] if d["severity"] == "error")
    assert (error["path"], error["line"], error["column"]) == (SOURCE, line, 3)
    assert "did you mean 'sync_block'" in error["message"]
    (warning,) = (d for d in right["diagnostics"] if d["severity"] == "warning")
    assert (warning["path"], warning["line"]) == (SOURCE, warned)


def test_packed_bytes_come_back(needs_node):
    data = np.arange(1000, dtype=np.uint16).tobytes()
    script = SCRIPTS / "unpacked_of_text.mjs"
    text = page_compiler.packed(page_compiler.zipped(data))
    found = node.run(script, given=[text[:100], text[100:]])
    assert base64.b64decode(found) == data
