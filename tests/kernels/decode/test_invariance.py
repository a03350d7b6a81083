"""The rest of the batch, and the places and sizes of pages, change no bit of a decode.

All comparisons are at a fixed keys_per_split, which a plan otherwise chooses from the shapes.
"""

import pytest
import torch

from labkernels import ops
from labkernels.kernels.caches.paged import PagedKV
from tests.kernels.contract import CUDA, RAGGED
from tests.kernels.decode.cases import bits, decode_case

KEYS_PER_SPLIT = 96
every_kernel = pytest.mark.parametrize("kernel", CUDA)


def run(case, kernel, **options):
    options.setdefault("keys_per_split", KEYS_PER_SPLIT)
    return ops.decode(case.q, case.cache, kernel=kernel, scale=case.scale, **options)


def assert_same(left, right):
    assert torch.equal(bits(left.out), bits(right.out))
    assert torch.equal(bits(left.lse2), bits(right.lse2))


@every_kernel
def test_the_rest_of_the_batch_changes_nothing(kernel):
    case = decode_case(RAGGED)
    together, cache = run(case, kernel), case.cache
    for i in range(cache.batch):
        pages = -(-int(cache.kv_len[i]) // cache.page_size)
        table = cache.page_table[i : i + 1, : max(1, pages)]
        alone = PagedKV(cache.k, cache.v, table, cache.kv_len[i : i + 1])
        single = run(case.changed(q=case.q[i : i + 1], cache=alone), kernel)
        assert torch.equal(bits(single.out[0]), bits(together.out[i]))
        assert torch.equal(bits(single.lse2[0]), bits(together.lse2[i]))


@every_kernel
def test_pages_and_layouts_change_nothing(kernel):
    first = run(decode_case(RAGGED), kernel)
    for page_size, layout in [(1, "nhd"), (3, "hnd"), (64, "padded"), (256, "joint")]:
        assert_same(first, run(decode_case(RAGGED, page_size=page_size, layout=layout), kernel))


@every_kernel
def test_the_order_of_pages_in_the_pool_changes_nothing(kernel):
    case = decode_case(RAGGED)
    cache = case.cache
    order = torch.randperm(len(cache.k), generator=torch.Generator().manual_seed(8))
    k, v = torch.empty_like(cache.k), torch.empty_like(cache.v)
    k[order], v[order] = cache.k, cache.v
    known = cache.page_table < len(order)
    table = torch.where(known, order[cache.page_table.clamp(max=len(order) - 1)], 0).int()
    moved = case.changed(cache=PagedKV(k, v, table, cache.kv_len))
    assert_same(run(case, kernel), run(moved, kernel))


@every_kernel
def test_the_order_of_query_heads_changes_their_order_alone(kernel):
    case = decode_case(RAGGED, group=8)
    first = run(case, kernel)
    order = torch.tensor([3, 0, 7, 1, 2, 6, 5, 4, 15, 8, 9, 14, 11, 10, 12, 13])
    turned = run(case.changed(q=case.q[:, order].contiguous()), kernel)
    assert torch.equal(bits(turned.out), bits(first.out[:, order]))
    assert torch.equal(bits(turned.lse2), bits(first.lse2[:, order]))


@every_kernel
def test_again_gives_the_same_bits(kernel):
    case = decode_case(RAGGED)
    first = run(case, kernel)
    for _ in range(5):
        assert_same(first, run(case, kernel))


@every_kernel
def test_a_split_longer_than_the_request_is_no_split(kernel):
    case = decode_case((90, 17, 0, 96))
    assert_same(run(case, kernel), run(case, kernel, keys_per_split=10_000))


@every_kernel
def test_values_times_a_power_of_two(kernel):
    """No rounding depends on the exponent of V, so that the factor passes through exactly.

    The factors exceed 1, since a V that becomes subnormal loses bits before the kernel sees it.
    """
    policies = [policy for policy in CUDA[kernel].policies if policy.out == "fp32"]
    case = decode_case(RAGGED, group=8)
    first = run(case, kernel, policy=policies[0])
    for power in (1, 8):
        cache = case.cache
        scaled = PagedKV(cache.k, cache.v * 2.0**power, cache.page_table, cache.kv_len)
        again = run(case.changed(cache=scaled), kernel, policy=policies[0])
        assert torch.equal(bits(again.out), bits(first.out * 2.0**power))
        assert torch.equal(bits(again.lse2), bits(first.lse2))
