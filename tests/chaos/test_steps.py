"""After each fault injected into a prepared step, the step is right again, bit for bit."""

import random
from dataclasses import replace
from functools import partial
from threading import Thread

import pytest
import torch

from labkernels.cuda.host import build
from labkernels.cuda.host.build import HostKernelError
from labkernels.kernels.caches.paged import PagedKV
from tests.chaos.faults import ended, in_child
from tests.chaos.test_chaos import LONG_SEEDS, length_of
from tests.kernels.contract import SPECS
from tests.kernels.decode.cases import bits, decode_case
from tests.kernels.prefill.cases import prefill_case

CUT = ("partial_m", "partial_o", "partial_l", "lse2", "kv_len", "page_table")
ALWAYS_TOUCHED = ("lse2", "kv_len")
REFUSALS = (ValueError, HostKernelError)


def steps_of(kernel):
    """Return a query and a cache, which may change, and a function that makes the step."""
    if SPECS[kernel].operation == "decode":
        case = decode_case((40, 90), kv_heads=1)
    else:
        case = prefill_case((2, 5), (40, 90), kv_heads=1, page_size=16)
    case = case.with_kv().changed(q=case.q.clone())
    return case.q, case.kv, partial(case.step, kernel, keys_per_split=32)


KERNELS = ("decode_fma", "decode_mma", "decode_mma_n8", "prefill_mma", "prefill_wgmma")


NAMES: list[str] = []  # launches may not touch the last 4 bytes of these tensors


@pytest.fixture
def _cut(monkeypatch):
    launch = build.HostKernel.launch

    def faulty(self, *, ranges, **how):
        kept = [replace(r, n_bytes=r.n_bytes - 4 * (r.name in NAMES)) for r in ranges]
        return launch(self, ranges=kept, **how)

    monkeypatch.setattr(build.HostKernel, "launch", faulty)


def is_right(step, make, name=None):
    """Return whether a run over outputs of NaN gives the bits of a fresh step.

    A launch may not touch all of the tensor that is named. Every kernel writes the last lse2 and
    reads the last length, so that it must refuse these.
    """
    fresh = make()
    fresh.run()
    for output in step.outputs():
        output.fill_(torch.nan)
    NAMES.extend(each for each in [name] if each)
    try:
        step.run()
    finally:
        NAMES.clear()
    pairs = zip(step.outputs(), fresh.outputs(), strict=True)
    same = all(torch.equal(bits(found), bits(right)) for found, right in pairs)
    return same and name not in ALWAYS_TOUCHED


def in_threads(step, make):
    threads = [Thread(target=step.run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return is_right(step, make)


def in_a_copy(step, make):
    def work():
        assert is_right(step, make)

    return ended(in_child(work)) == 0


@pytest.mark.parametrize("seed", [0, *LONG_SEEDS])
@pytest.mark.usefixtures("_cut")
def test_steps(seed, tally, request):
    rng = random.Random(seed)
    made = []
    for kernel in KERNELS:
        q, cache, make = steps_of(kernel)
        made.append((q, cache, make, make(), make(checks=True)))
    for _ in range(length_of(request)):
        q, cache, make, plain, checked = rng.choice(made)
        how = rng.choice(("cut", "page", "length", "threads", "fork"))
        if how == "cut":
            tally.judge(how, partial(is_right, plain, make, rng.choice(CUT)), REFUSALS)
        elif how in ("page", "length"):
            wrong_content(rng, cache, how, partial(tally.judge, how), checked, make)
        else:
            use = in_threads if how == "threads" else in_a_copy
            tally.judge(how, partial(use, plain, make), REFUSALS)
        q.mul_(rng.choice((-1, 0.5, 2)))  # now the outputs of earlier launches are wrong
        if not 1e-2 < q.abs().max() < 1e2:
            q.copy_(torch.randn_like(q))
        for step in (plain, checked):
            tally.require(how, partial(is_right, step, make))


def wrong_content(rng, cache: PagedKV, how: str, judge, step, make):
    """Judge a run over a page or a length out of range, and restore the tensor."""
    tensor = cache.kv_len if how == "length" else cache.page_table
    place = (rng.randrange(2),) if how == "length" else (rng.randrange(2), rng.randrange(3))
    before = int(tensor[place])
    tensor[place] = rng.choice((-1, 2**31 - 1, -(2**31), 10_000))
    judge(lambda: is_right(step, make), REFUSALS)
    tensor[place] = before
