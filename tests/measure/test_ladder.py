"""Each rung of a ladder adds one idea, in a difference that can be read in one sitting."""

import re

import pytest

from labkernels import hardware
from labkernels.budget.occupancy import occupancy
from labkernels.cuda.compiler import nvrtc
from labkernels.kernels.registry import discover
from labkernels.measure import ladder, resources
from tests.repo import files

READABLE = 80  # lines of code that a rung adds
# The kernels that a user gets are at the tops of their ladders, and add more than one idea.
LONGER = {
    "decode mma.sync": "it adds a cache of 8 bits, whose words it loads and widens",
    "prefill prefill_wgmma": "it adds pages, a scheduler, skipped blocks, rows as whole lines",
    "backward backward_wgmma": "it adds warps that add dQ, an ordered dQ, dV beside dS, head_dims",
}
RUNGS = [rung for operation in ladder.operations() for rung in ladder.rungs(operation)]
BASIC = discover()["prefill_wgmma_basic"]
NAMED = [
    pytest.param(kernel, tile, id=f"{kernel}-{tile.label}")
    for kernel in ("prefill_wgmma_basic", "backward_wgmma")
    for tile in discover()[kernel].named_tiles(ladder.HEAD_DIM)
]


@pytest.mark.parametrize("operation", ladder.operations())
def test_each_rung_stands_on_the_one_below(operation):
    rungs = ladder.rungs(operation)
    assert [ladder.parent_of(rung) for rung in rungs] == [None, *rungs[:-1]]
    assert {rung.operation for rung in rungs} == {operation}
    assert len({(rung.kernel, rung.tile) for rung in rungs}) == len(rungs)
    heads = {path.read_text().splitlines()[0] for path in BASIC.folder.parents[1].rglob("*.cuh")}
    assert [rung.name for rung in rungs if heads & set(rung.source)] == [], "about a file"


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: f"{rung.operation}-{rung.name}")
def test_a_rung_adds_what_can_be_read_in_one_sitting(rung):
    found = ladder.difference(rung)
    if found is None:
        assert ladder.parent_of(rung) is None
        return
    shown = [line for line in found.text.splitlines() if line.startswith("+")]
    assert len(shown) >= found.added, "what is counted is shown"
    longer = f"{rung.operation} {rung.name}" in LONGER
    assert (found.added > READABLE) == longer, f"{found.added} lines"
    if found.added == found.removed == 0:
        parent = ladder.parent_of(rung)
        assert rung.tile != parent.tile, "a rung without a line of its own is another tile"


def test_the_chapter_shows_what_every_rung_changes():
    chapter = (files.ROOT / "notebooks" / "the_ladder.py").read_text()
    for rung in RUNGS:
        found = ladder.difference(rung)
        if found and 0 < found.added <= READABLE:
            operation = "" if rung.operation == "prefill" else f', "{rung.operation}"'
            assert f'\nchange("{rung.name}"{operation})\n' in chapter


@pytest.mark.parametrize("operation", ["prefill", "backward"])
def test_every_passage_of_the_sources_is_on_some_rung(operation):
    folder = BASIC.folder.parents[1] / operation
    text = "".join(path.read_text() for path in folder.glob("*/*.cuh"))
    opened, closed = (re.findall(rf"// \[{end}rung: (.*)\]", text) for end in ("", "/"))
    assert opened == closed
    used = {name for rung in ladder.rungs(operation) for name in rung.passages}
    assert used | {"names"} == set(opened), "what names the rungs is part of none"
    assert len(opened) == len(set(opened))


@pytest.mark.skipif(nvrtc.available() is not None, reason=str(nvrtc.available()))
@pytest.mark.one_in(4)
@pytest.mark.parametrize(("kernel", "tile"), NAMED)
def test_a_rung_compiles_without_a_spill(kernel, tile):
    spec, gpu = discover()[kernel].with_tile(tile), hardware.gpu("h200")
    instance = spec.instance(spec.shape(head_dim=ladder.HEAD_DIM))
    report = resources.compile_instance(instance, arch=gpu.compile_arch).report
    assert (report.spill_store_bytes, report.spill_load_bytes, report.stack_bytes) == (0, 0, 0)
    assert report.warnings == ()
    limit = spec.thread_registers(instance) or report.registers
    assert spec.registers(instance).total <= limit
    smem_bytes = spec.smem(instance).total
    sizes = {"threads": tile.threads, "registers": report.registers, "smem_bytes": smem_bytes}
    assert occupancy(gpu, **sizes).blocks_per_sm >= tile.blocks_per_sm
