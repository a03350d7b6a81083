"""A step that faulted runs again as if nothing had happened: its counters are zero again."""

import math
from dataclasses import replace

import pytest
import torch

from labkernels import ops
from labkernels.cuda.host import build
from labkernels.cuda.host.build import HostKernelError
from tests.kernels.append.cases import append_case, check_appended
from tests.kernels.backward.cases import CUDA_BACKWARDS, backward_case
from tests.kernels.contract import CUDA, CUDA_MLAS, CUDA_PREFILLS
from tests.kernels.decode.cases import bits, decode_case
from tests.kernels.mla.cases import mla_case
from tests.kernels.prefill.cases import prefill_case

SPLIT = {"keys_per_split": 64}


def decode_step(kernel):
    case = decode_case((150, 200), group=2)
    q = case.q.clone()
    return q, lambda: ops.decode_step(q, case.cache, kernel=kernel, **SPLIT)


def prefill_step(kernel):
    paged = "paged" in CUDA_PREFILLS[kernel].layouts
    case = prefill_case((3, 70), (150, 200), page_size=16 if paged else None)
    q = case.q.clone()
    return q, lambda: ops.prefill_step(q, case.kv, case.cu_seqlens_q, kernel=kernel, **SPLIT)


def mla_step(kernel):
    case = mla_case((1, 2), (150, 200))
    q, rest = case.q_nope.clone(), (case.q_pe, case.kv, case.cu_seqlens_q)
    return q, lambda: ops.mla_decode_step(q, *rest, kernel=kernel, **SPLIT)


def backward_step(kernel):
    case = backward_case((70, 90), (150, 200))
    dout, *rest = case.arguments
    dout = dout.clone()
    return dout, lambda: ops.backward_step(dout, *rest, kernel=kernel, deterministic=True)


STEPS = {
    **dict.fromkeys(CUDA, decode_step),
    **dict.fromkeys(CUDA_PREFILLS, prefill_step),
    **dict.fromkeys(CUDA_MLAS, mla_step),
    **dict.fromkeys(CUDA_BACKWARDS, backward_step),
}
every_step = pytest.mark.parametrize(("kernel", "prepare"), STEPS.items())


@pytest.fixture
def fault(monkeypatch):
    """Return a function that makes launches fault late, at the last bytes of named tensors."""
    launch, cut = build.HostKernel.launch, []

    def faulty(self, *, ranges, **how):
        kept = [replace(r, n_bytes=r.n_bytes - 4 * (r.name in cut)) for r in ranges]
        return launch(self, ranges=kept, **how)

    monkeypatch.setattr(build.HostKernel, "launch", faulty)
    return lambda *names: cut.__setitem__(slice(None), names)


def forget(step):
    for output in step.outputs():
        output.fill_(math.nan)


@every_step
def test_a_step_runs_again_after_a_fault(kernel, prepare, fault):
    given, make = prepare(kernel)
    step = make()
    for _ in range(2):
        fault("partial_m", "dk")  # what the last split, or the last block of keys, writes last
        with pytest.raises(HostKernelError, match="out of bounds"):
            step.run()
        fault()
        given.mul_(-0.5)  # now the results of earlier launches are wrong
        forget(step)
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
