"""Steps with checks on a real GPU report contents out of range without reading them back."""

import warnings
from dataclasses import fields

import pytest
import torch

from labkernels import ops
from labkernels.kernels.caches.paged import PagedKV
from labkernels.measure import timing
from tests.kernels.contract import CUDA, CUDA_MLAS, PAGED_PREFILLS
from tests.kernels.decode.cases import bits, decode_case
from tests.kernels.trials import short_case

pytestmark = pytest.mark.gpu


def shortened_step(kernel):
    """Return a cache without its pool's last page, whose memory stays, and a step that reads it.

    So nothing faults.
    """
    case = short_case(kernel, device="cuda")
    names = [field.name for field in fields(case.kv)][:2]
    pools = dict(zip(names, case.kv.pools, strict=True))
    last, table = len(case.kv.pool) - 1, case.kv.page_table
    table = torch.where(table == last, 0, table.clamp(max=last - 1)).int()
    cut = {name: pool[:last] for name, pool in pools.items()}
    case = case.with_kv(page_table=table, kv_len=case.kv.kv_len.clone(), **cut)
    return case.kv, case.step(kernel, checks=True)


@pytest.mark.parametrize("kernel", [*CUDA, *PAGED_PREFILLS, *CUDA_MLAS])
def test_a_page_out_of_range_is_told_by_the_next_check(kernel):
    cache, step = shortened_step(kernel)
    graph = timing.capture(step.run)
    graph.replay()
    torch.cuda.synchronize()
    step.check()
    expected = bits(step.out).clone()
    right = int(cache.page_table[1, 3])
    for run in (step.run, graph.replay):
        cache.page_table[1, 3] = len(cache.pool)
        run()
        torch.cuda.synchronize()
        with pytest.raises(ValueError, match=rf"page_table\[1, 3\] = {len(cache.pool)}, allowed"):
            step.check()
        cache.page_table[1, 3] = right
        run()
        torch.cuda.synchronize()
        step.check()
        assert torch.equal(bits(step.out), expected)


def test_a_length_out_of_range_leaves_nothing_behind():
    """Its splits wait for splits that do not come, but the counters are zero again afterwards."""
    case = decode_case((200, 150), device="cuda")
    k, v, given = *case.cache.pools, case.cache.page_table
    # After each row of the table comes page 0, so that the read of a key too many does not fault.
    room = torch.zeros(len(given), given.shape[1] + 1, dtype=torch.int32, device="cuda")
    table = room[:, :-1].copy_(torch.where(given < len(k), given, 0))
    cache = PagedKV(k, v, table, case.cache.kv_len.clone())
    step = ops.decode_step(case.q, cache, keys_per_split=64, checks=True)
    graph = timing.capture(step.run)
    cache.kv_len[0] = cache.max_kv_len + 1
    graph.replay()
    torch.cuda.synchronize()
    cache.kv_len[0] = 200
    with pytest.raises(ValueError, match=r"kv_len\[0\] = "):
        step.check()
    step.out.fill_(torch.nan)
    graph.replay()
    assert torch.equal(bits(step.out), bits(ops.decode(case.q, case.cache, keys_per_split=64).out))


def test_a_check_waits_for_nothing():
    case = decode_case((200, 150), device="cuda")
    step = ops.decode_step(case.q, case.cache, checks=True)
    step.run()
    torch.cuda.synchronize()
    try:
        with warnings.catch_warnings():  # that the mode is a prototype
            warnings.simplefilter("ignore")
            torch.cuda.set_sync_debug_mode("error")
        for _ in range(100):
            step.check()
            step.run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
