"""Every CUDA decode kernel keeps its contract on the CPU build.

Some tests run many shapes on a few compiled instances, others many instances on a few shapes.
Expectations come from numerics alone: see contract.py.
"""

import math

import pytest
import torch

from labkernels import ops
from labkernels.kernels.caches.paged import PagedKV
from tests.kernels.contract import CUDA, RAGGED, run_checked
from tests.kernels.decode.cases import LAYOUTS, bits, decode_case

GROUPS = (1, 2, 3, 4, 5, 6, 7, 8, 16)
PAGES = (1, 3, 16, 64, 256)
SPLITS = (None, 64, 37)  # the plan's choice; whole steps; no whole steps
every_kernel = pytest.mark.parametrize("kernel", CUDA)


def every_tile():
    """Yield every tile option once, with the most rows and alternating formats."""
    for name, spec in CUDA.items():
        for head_dim in spec.head_dims:
            rows = max(spec.rows(group) for group in GROUPS)
            for i, tile in enumerate(
                spec.tiles(spec.shape(head_dim=head_dim, group=rows), spec.policies[0])
            ):
                yield pytest.param(name, head_dim, tile.label, ("bf16", "fp16")[i % 2], rows)


@pytest.mark.few_of_each("kernel", 3)
@every_kernel
@pytest.mark.parametrize("group", GROUPS)
def test_every_group(kernel, group):
    layout = LAYOUTS[group % len(LAYOUTS)]
    case = decode_case(RAGGED, group=group, layout=layout, seed=group)
    for keys_per_split in SPLITS:
        run_checked(case, kernel, keys_per_split=keys_per_split)


@pytest.mark.few_of_each("kernel", 2)
@pytest.mark.parametrize(("kernel", "head_dim", "tile", "dtype", "rows"), list(every_tile()))
def test_every_tile(kernel, head_dim, tile, dtype, rows):
    case = decode_case(RAGGED, group=rows, kv_heads=1, head_dim=head_dim, dtype=dtype)
    result = run_checked(case, kernel, tile=tile, keys_per_split=None)
    assert result.plan.tile == tile
    run_checked(case, kernel, tile=tile, keys_per_split=1016)


@pytest.mark.few_of_each("kernel", 3)
@every_kernel
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("page_size", PAGES)
def test_every_page_size(kernel, head_dim, page_size):
    case = decode_case(RAGGED, group=8, head_dim=head_dim, page_size=page_size, seed=page_size)
    run_checked(case, kernel)


@pytest.mark.few_of_each("kernel", 2)
@every_kernel
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("page_size", [1, 3])
def test_every_layout(kernel, layout, page_size):
    case = decode_case(RAGGED, group=5, page_size=page_size, layout=layout, dtype="bf16")
    run_checked(case, kernel, keys_per_split=100)


@pytest.mark.few_of_each("kernel", 8)
@every_kernel
@pytest.mark.parametrize("kv_len", [0, 1, 15, 16, 17, 63, 64, 65, 128, 129])
@pytest.mark.parametrize("keys_per_split", [1, 16, 64, None])
def test_lengths_around_a_step(kernel, kv_len, keys_per_split):
    case = decode_case((kv_len,), kv_heads=1, seed=kv_len)
    run_checked(case, kernel, keys_per_split=keys_per_split)


@every_kernel
def test_splits_without_keys(kernel):
    """The longest request sets the number of splits, and most splits of the others are empty."""
    case = decode_case((1000, 0, 1, 64, 65), seed=5)
    result = run_checked(case, kernel, keys_per_split=64)
    assert result.plan.splits >= 16


@every_kernel
def test_every_request_is_empty(kernel):
    for keys_per_split in (None, 1):
        run_checked(decode_case((0, 0, 0)), kernel, keys_per_split=keys_per_split)


@every_kernel
def test_pool_and_table_without_a_page(kernel):
    pool = torch.empty(0, 16, 2, 64, dtype=torch.float16)
    table, lengths = torch.empty(3, 0, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    q = torch.randn(3, 8, 64).half()
    result = ops.decode(q, PagedKV(pool, pool, table, lengths), kernel=kernel)
    assert not result.out.any()
    assert (result.lse2 == -math.inf).all()


@every_kernel
def test_requests_may_share_pages(kernel):
    case = decode_case((100, 100), page_size=16)
    cache = case.cache
    both = cache.page_table.clone()
    both[1] = both[0]
    q = case.q[:1].expand(2, -1, -1)
    result = ops.decode(q, PagedKV(cache.k, cache.v, both, cache.kv_len), kernel=kernel)
    assert torch.equal(bits(result.out[0]), bits(result.out[1]))
    alone = ops.decode(case.q, cache, kernel=kernel)
    assert torch.equal(bits(result.out[0]), bits(alone.out[0]))


@every_kernel
def test_large_and_tiny_scores(kernel):
    """Scores of hundreds leave one key with all the weight; scores of nearly 0 leave it to all."""
    case = decode_case(RAGGED, seed=3)
    for factor in (30.0, 2.0**-12):
        run_checked(case.changed(q=case.q * factor), kernel, keys_per_split=100, sharp=False)


@every_kernel
def test_scale_is_the_callers(kernel):
    case = decode_case(RAGGED, seed=3)
    for scale in (0.02, 1.5):
        run_checked(case.changed(scale=scale), kernel, sharp=False)
    default = ops.decode(case.q, case.cache, kernel=kernel)
    given = ops.decode(case.q, case.cache, kernel=kernel, scale=case.scale)
    assert torch.equal(bits(default.out), bits(given.out))
