"""With checks, a run over a page or a length out of range names it, whatever kernel runs."""

import numpy as np
import pytest
import torch

from labkernels import hardware, ops
from labkernels.kernels.caches.page_guard import Guard
from labkernels.kernels.caches.paged import PagedKV, check_pages
from tests.kernels.append.cases import append_case
from tests.kernels.contract import SPECS
from tests.kernels.decode.cases import assert_same
from tests.kernels.trials import short_case

REQUEST, SLOT = 1, 3
PAGED = [name for name, spec in SPECS.items() if "paged" in spec.layouts]


def checked_step(kernel):
    """Return a cache with a table of its own, and a step with checks that reads it."""
    if kernel == "append":
        case = append_case((70, 3), (150, 20))
        return case.cache, ops.append_step(*case.arguments, checks=True)
    case = short_case(kernel).with_kv()
    return case.kv, case.step(kernel, checks=True)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kernel", PAGED)
def test_a_page_out_of_range_is_named_and_a_repaired_one_served(kernel):
    cache, step = checked_step(kernel)
    right = int(cache.page_table[REQUEST, SLOT])
    for wrong in (len(cache.pool), -1, 2**31 - 1):
        cache.page_table[REQUEST, SLOT] = wrong
        words = rf"page_table\[1, 3\] = {wrong}, allowed: 0 to {len(cache.pool) - 1}, the pages"
        for use in (step.run, step.check):
            with pytest.raises(ValueError, match=words):
                use()
    cache.page_table[REQUEST, SLOT] = right
    for length in (-1, cache.max_kv_len + 1):
        kept = int(cache.kv_len[REQUEST])
        cache.kv_len[REQUEST] = length
        with pytest.raises(ValueError, match=rf"kv_len\[1\] = {length}, allowed: "):
            step.run()
        cache.kv_len[REQUEST] = kept
    step.check()
    step.run()
    if step.outputs():
        fresh = checked_step(kernel)[1]
        fresh.run()
        assert_same(step, fresh)


def test_lengths_that_a_prefill_was_prepared_for_must_stay():
    with pytest.raises(ValueError, match="checks = False, or no pages, allowed: checks = True"):
        short_case("prefill_mma").step("prefill_mma").check()
    cache, step = checked_step("prefill_mma")
    cache.kv_len[REQUEST] -= 1
    with pytest.raises(ValueError, match=r"kv_len\[1\] = 199, allowed: 200, for which the step"):
        step.run()


def test_an_append_checks_the_pages_that_it_writes():
    cache, step = checked_step("append")
    cache.page_table[REQUEST, 170 // 16] = 999  # after the old keys, where new keys go
    with pytest.raises(ValueError, match=r"page_table\[1, 10\] = 999"):
        step.run()


def contents(draw):
    """Return a cache of zeros, perhaps with an entry out of range, planned lengths or new keys."""
    pages, size, batch, slots = 5, int(draw.integers(1, 20)), 4, int(draw.integers(1, 300))
    table = torch.from_numpy(draw.integers(0, pages, (batch, slots)).astype(np.int32))
    kv_len = torch.from_numpy(draw.integers(0, slots * size + 1, batch).astype(np.int32))
    planned = kv_len.numpy().astype(np.int64) if draw.random() < 0.3 else None
    new = np.append(0, draw.integers(0, 30, batch).cumsum()).astype(np.int32)
    new = torch.from_numpy(new) if draw.random() < 0.3 else None
    what = draw.random()  # at most one wrong entry, so that both guards name the same entry
    if what < 0.7:
        wrong = int(draw.choice([-1, pages, 2**31 - 1, -(2**31)]))
        table[draw.integers(batch), draw.integers(slots)] = wrong
    elif what < 0.9:
        kv_len[draw.integers(batch)] = int(draw.choice([-1, slots * size + 1, 2**31 - 1]))
    pool = torch.zeros(pages, size, 1, 64, dtype=torch.float16)
    return PagedKV(pool, pool, table, kv_len), planned, new


def answer(use, *arguments):
    try:
        use(*arguments)
    except ValueError as refusal:
        return str(refusal)
    return ""


def read(guard, cache, planned, new):
    """Read the contents of a cache directly."""
    for request in [] if planned is None else np.flatnonzero(cache.kv_len.numpy() != planned):
        raise guard.refusal(request, -1, int(cache.kv_len[request]))
    check_pages(cache.page_table, cache.kv_len, sizes=cache.pool.shape[:2])
    after = cache.kv_len if new is None else cache.kv_len + new.diff()
    check_pages(cache.page_table, after.clamp(max=cache.max_kv_len), sizes=cache.pool.shape[:2])


def test_the_guards_kernel_finds_what_reading_finds():
    draw, refused = np.random.default_rng(0), 0
    for _ in range(100):
        cache, planned, new = contents(draw)
        cleared = []
        step = ops.Step(lambda: None, lambda: None, clear=lambda kept=cleared: kept.append(1))
        guard = Guard(cache, step, hardware.gpu("h200"), planned, new)
        expected = answer(read, guard, cache, planned, new)
        assert answer(guard.before_run) == expected
        assert len(cleared) == bool(expected)
        refused += bool(expected)
    assert 30 < refused < 90
