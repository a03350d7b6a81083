"""On a real GPU, append writes the new rows to their pages, and nothing else."""

import pytest
import torch

from labkernels import ops
from labkernels.kernels.caches.paged import PagedKV
from labkernels.measure import timing
from tests.kernels.append import test_append as on_cpu
from tests.kernels.append import test_rotary as rotary
from tests.kernels.append.cases import append_case
from tests.kernels.decode.cases import LAYOUTS, bits

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("page_size", on_cpu.PAGES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_page_size_and_layout(page_size, layout):
    on_cpu.check_append(page_size=page_size, layout=layout, device="cuda")


@pytest.mark.parametrize("shape", on_cpu.SHAPES)
def test_every_head_dim(shape):
    on_cpu.check_append(more=[(5, 20_000)], **shape, device="cuda")


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("dtype", "table", "kind"), rotary.FORMATS)
@pytest.mark.parametrize("shape", rotary.SHAPES)
def test_rotated_keys_and_queries_have_the_bits_of_fp32(shape, dtype, table, kind, interleaved):
    growths, how = (*on_cpu.GROWTHS, (5, 20_000)), {"dtype": dtype, "device": "cuda"}
    rotary.check_rotary(growths, table, kind, interleaved, **how, **shape)


def test_kv_cache_is_the_append_and_then_the_attention():
    on_cpu.check_append_and_attention("cuda")


def test_a_graph_appends_at_every_replay():
    case = append_case((5, 12), (0, 12), page_size=3, device="cuda")
    rows = [x.clone() for x in (case.k_new, case.v_new)]
    k_new, v_new = (x.view(2, 12, *x.shape[1:])[:, :6].flatten(0, 1).contiguous() for x in rows)
    sums = torch.tensor([0, 6, 12], dtype=torch.int32, device="cuda")
    step = ops.append_step(case.cache, k_new, v_new, sums)
    graph = timing.capture(step.run)  # its warm-up appends already
    case.cache.kv_len.copy_(torch.tensor([5, 0]))
    for half in (slice(0, 6), slice(6, 12)):
        for new, all_rows in zip((k_new, v_new), rows, strict=True):
            new.copy_(all_rows.view(2, 12, *all_rows.shape[1:])[:, half].flatten(0, 1))
        graph.replay()
    for found, expected in (
        (case.cache.kv_len, case.whole.cache.kv_len),
        (case.cache.page_table, case.whole.cache.page_table),
    ):
        assert torch.equal(found, expected)
    q = torch.randn(2, 8, 64, device="cuda").half()
    found, expected = (ops.decode(q, x.cache) for x in (case, case.whole))
    assert torch.equal(bits(found.out), bits(expected.out))


def test_rows_at_the_top_of_a_large_pool():
    page_size, kv_heads, head_dim = 64, 8, 128
    pages = 2**31 // (page_size * kv_heads * head_dim) + 2
    shape = (pages, page_size, kv_heads, head_dim)
    needed_bytes = 2 * 2 * pages * page_size * kv_heads * head_dim
    free_bytes = torch.cuda.mem_get_info()[0]
    if free_bytes < needed_bytes + 2**30:
        pytest.skip(f"needs {needed_bytes:,} B of GPU memory, {free_bytes:,} B are free")
    k, v = (torch.zeros(shape, dtype=torch.bfloat16, device="cuda") for _ in "kv")
    table = torch.tensor([[pages - 1]], dtype=torch.int32, device="cuda")
    length = torch.tensor([1], dtype=torch.int32, device="cuda")
    k_new, v_new = (torch.randn(9, kv_heads, head_dim, device="cuda").bfloat16() for _ in "kv")
    sums = torch.tensor([0, 9], dtype=torch.int32, device="cuda")
    ops.append(PagedKV(k, v, table, length), k_new, v_new, sums)
    for pool, rows in ((k, k_new), (v, v_new)):
        assert torch.equal(pool[-1, 1:10], rows)
        assert not pool[:2].any()
