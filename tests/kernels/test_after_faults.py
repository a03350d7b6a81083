"""A step that faulted runs again as if nothing had happened: its counters are zero again."""

import math
from dataclasses import replace
from threading import Thread

import pytest
import torch

from labkernels import ops
from labkernels.cuda.host import build
from labkernels.cuda.host.build import HostKernelError
from tests import forked
from tests.kernels.append.cases import append_case, check_appended
from tests.kernels.backward.cases import CUDA_BACKWARDS, backward_case
from tests.kernels.contract import CUDA, CUDA_MLAS, CUDA_PREFILLS
from tests.kernels.decode.cases import bits
from tests.kernels.trials import short_case


def prepared(kernel):
    """Return a tensor that a step reads, which may change, and a function that makes the step."""
    if kernel in CUDA_BACKWARDS:
        dout, *rest = backward_case((70, 90), (150, 200)).arguments
        dout = dout.clone()
        return dout, lambda: ops.backward_step(dout, *rest, kernel=kernel, deterministic=True)
    case = short_case(kernel)
    name = case.queries[0]
    own = case.changed(**{name: getattr(case, name).clone()})
    return getattr(own, name), lambda: own.step(kernel, keys_per_split=64)


@pytest.fixture
def fault(monkeypatch):
    """Return a function that makes launches fault late, at the last bytes of named tensors."""
    launch, cut = build.HostKernel.launch, []

    def faulty(self, *, ranges, **how):
        kept = [replace(r, n_bytes=r.n_bytes - 4 * (r.name in cut)) for r in ranges]
        return launch(self, ranges=kept, **how)

    monkeypatch.setattr(build.HostKernel, "launch", faulty)
    return lambda *names: cut.__setitem__(slice(None), names)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kernel", [*CUDA, *CUDA_PREFILLS, *CUDA_MLAS, *CUDA_BACKWARDS])
def test_a_step_runs_again_after_a_fault(kernel, fault):
    given, make = prepared(kernel)
    step = make()
    for _ in range(2):
        fault("partial_m", "dk")  # what the last split, or the last block of keys, writes last
        with pytest.raises(HostKernelError, match="out of bounds"):
            step.run()
        fault()
        given.mul_(-0.5)  # now the results of earlier launches are wrong
        for output in step.outputs():
            output.fill_(math.nan)
        step.run()
        fresh = make()
        fresh.run()
        for found, expected in zip(step.outputs(), fresh.outputs(), strict=True):
            assert torch.equal(bits(found), bits(expected))


def test_an_append_runs_again_after_a_fault(fault):
    case = append_case((7, 20), (16, 40), (0, 300))
    step = ops.append_step(*case.arguments)
    fault("v_new")
    with pytest.raises(HostKernelError, match="v_new"):
        step.run()
    fault()
    assert case.cache.kv_len.tolist() == [7, 16, 0]
    step.run()
    check_appended(case)


@pytest.mark.parametrize("kernel", ["decode_mma", "prefill_mma"])
def test_a_step_that_two_threads_ran_or_a_copy_of_the_process_runs_is_right(kernel):
    _, make = prepared(kernel)
    step, fresh = make(), make()
    fresh.run()

    def check():
        for output in step.outputs():
            output.fill_(math.nan)
        step.run()
        for found, expected in zip(step.outputs(), fresh.outputs(), strict=True):
            assert torch.equal(bits(found), bits(expected))

    threads = [Thread(target=step.run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert forked.end(forked.start(check)) == 0
    check()
