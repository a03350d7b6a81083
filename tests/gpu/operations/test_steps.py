"""Steps on a real GPU have the same bits every time, in graphs, in large pools, and alone."""

import math
from dataclasses import fields

import pytest
import torch

from labkernels.measure import timing
from tests.kernels.backward.cases import BACKWARDS, backward_case
from tests.kernels.contract import SPECS
from tests.kernels.decode.cases import assert_same, bits, decode_case
from tests.kernels.mla.cases import mla_case
from tests.kernels.prefill.cases import prefill_case

pytestmark = pytest.mark.gpu

IN_PAGES = {"page_size": 16, "layout": "nhd", "device": "cuda"}
LONG = {
    "decode": lambda: decode_case((900, 900, 900, 900), head_dim=128, group=8, **IN_PAGES),
    "prefill": lambda: prefill_case((300, 1, 0, 70), (1000, 700, 3, 70), **IN_PAGES),
    "mla": lambda: mla_case((2, 1, 0, 4), (1000, 700, 3, 70), heads=33, **IN_PAGES),
}
IN_LARGE_PAGES = {"dtype": "bf16", "page_size": 64, "layout": "nhd", "device": "cuda"}
IN_A_LARGE_POOL = {
    "decode": lambda: decode_case((1000, 5, 300), kv_heads=8, head_dim=128, **IN_LARGE_PAGES),
    "prefill": lambda: prefill_case((70, 5), (300, 5), head_dim=128, **IN_LARGE_PAGES),
    "mla": lambda: mla_case((2, 1), (300, 5), heads=16, **IN_LARGE_PAGES),
}
PAGED = [
    spec.name
    for spec in SPECS.values()
    if spec.operation in LONG and spec.language != "torch" and "paged" in spec.layouts
]
every_kernel = pytest.mark.parametrize("kernel", PAGED)
either_cut = pytest.mark.parametrize(
    "cut", [{"keys_per_split": 10_000}, {"keys_per_split": 96}], ids=["unsplit", "split"]
)


def assert_gives(run, step, expected):
    """Assert that `run` writes the expected bits into the step's outputs."""
    step.out.fill_(math.nan)
    step.lse2.fill_(math.nan)
    run()
    assert_same(step, expected)


@every_kernel
@either_cut
def test_every_run_gives_the_same_bits_and_a_graph_too(kernel, cut):
    """A graph follows the pages, and in a decode also the lengths."""
    case = LONG[SPECS[kernel].operation]()
    moving, turns = case.with_kv(), ([0, 1, 2, 3], [0, 0, 2, 3], [0, 1, 2, 3])
    step = moving.step(kernel, **cut)
    graph = timing.capture(step.run)
    is_decode = SPECS[kernel].operation == "decode"
    lengths = [(900,) * 4, (0, 1, 900, 65), (64, 63, 0, 900)] if is_decode else [None] * 3
    for order, kv_len in zip(turns, lengths, strict=True):
        moving.kv.page_table.copy_(case.kv.page_table[order])
        if kv_len:
            moving.kv.kv_len.copy_(torch.tensor(kv_len))
        fresh = moving.run(kernel, **cut)
        for run in [step.run, graph.replay] * 30:
            assert_gives(run, step, fresh)


@every_kernel
@either_cut
def test_a_request_at_the_top_of_a_large_pool(kernel, cut):
    """In pools of more than 2^31 elements, the offsets of the last pages need 64 bits."""
    case = IN_A_LARGE_POOL[SPECS[kernel].operation]()
    small, table = case.kv.pools, case.kv.page_table
    first, pages = -(-(2**31) // small[0][0].numel()), len(small[0])
    needed_bytes = sum((first + pages) * pool[0].nbytes for pool in small)
    free_bytes = torch.cuda.mem_get_info()[0]
    if free_bytes < needed_bytes + 2**30:
        pytest.skip(f"needs {needed_bytes:,} B of GPU memory, {free_bytes:,} B are free")
    large = [pool.new_empty(first + pages, *pool.shape[1:]) for pool in small]
    for pool, part in zip(large, small, strict=True):
        pool[first:] = part
    names = [field.name for field in fields(case.kv)]
    table = torch.where(table < pages, table + first, 0).int()
    moved = case.with_kv(page_table=table, **dict(zip(names, large, strict=False)))
    assert_same(case.run(kernel, **cut), moved.run(kernel, **cut))


@pytest.mark.parametrize("kernel", BACKWARDS)
@pytest.mark.parametrize("head_dim", [64, 128, 192, 256])
def test_an_ordered_backward_pass_gives_the_same_bits_every_time(kernel, head_dim):
    shape = {"head_dim": head_dim, "dtype": "bf16", "layout": "padded", "device": "cuda"}
    step = backward_case(*[(300, 1, 0, 513, 70)] * 2, **shape).step(kernel, deterministic=True)
    graph = timing.capture(step.run)
    first = [bits(x).clone() for x in step.outputs()]
    for i in range(1000):
        for output in step.outputs():
            output.fill_(math.nan)
        (graph.replay if i % 2 else step.run)()
        assert all(map(torch.equal, map(bits, step.outputs()), first)), f"run {i} differs"
