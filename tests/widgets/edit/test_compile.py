"""A page compiles a kernel to what the book's compiler makes, and places what is wrong in it."""

import base64
from pathlib import Path

import node
import numpy as np
import page_compiler

from labkernels.cuda.compiler import cache
from labkernels.cuda.wasm import compiler, coroutine
from labkernels.widgets.launches import page_launch

SCRIPTS = Path(__file__).parents[1] / "scripts"
PASSES = ("inline_what_waits", "numbered_accesses", "suspendable")


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


def test_packed_bytes_come_back(needs_node):
    data = np.arange(1000, dtype=np.uint16).tobytes()
    script = SCRIPTS / "unpacked_of_text.mjs"
    text = page_compiler.packed(page_compiler.zipped(data))
    found = node.run(script, given=[text[:100], text[100:]])
    assert base64.b64decode(found) == data
