"""The benchmark checks what it measures, here on the CPU with made-up times."""

import os
import threading
from dataclasses import replace

import pytest
import torch

from labkernels.kernels.append.workload import Append
from labkernels.kernels.backward.workload import Backward
from labkernels.kernels.call import Attention, Step
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.mla.workload import MlaDecode
from labkernels.kernels.operation import operations
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.random_inputs import Normal
from labkernels.measure import benchmark as bench
from labkernels.measure import timing
from labkernels.measure.implementation import (
    Implementation,
    implementations,
    on_and_off,
)
from labkernels.measure.judge.judge import judge_of
from labkernels.measure.peers import peer
from labkernels.measure.peers.peer import PEER_POLICY
from tests import fake_gpu

EVEN = Decode.uniform(2, 40, q_heads=4, kv_heads=2, head_dim=64, dtype="fp16")
WORKLOADS = {
    "ragged": ("prefill", "prefill_mma", Prefill((96, 256), (96, 256), 2, 2, 64, causal=True)),
    "paged": ("prefill", "prefill_mma", Prefill((96, 256), (96, 256), 4, 2, 64, page_size=16)),
    "two widths": (
        "prefill",
        "prefill_mma",
        Prefill((64, 48), (64, 48), 2, 1, 192, causal=True, head_dim_v=128),
    ),
    "mla": ("mla", "mla_mma", MlaDecode((96, 0, 256), 17, q_len=2, page_size=16)),
    "causal gradients": (
        "backward",
        "backward_mma",
        Backward((96, 0, 130), (96, 7, 130), 2, 2, 64, causal=True),
    ),
    "grouped gradients": (
        "backward",
        "backward_mma ordered",
        Backward((64, 33), (100, 20), 6, 2, 64),
    ),
    "append": ("append", "append", Append((5, 0, 17), (20, 3, 1), 2, 64, page_size=4)),
    "append e4m3": ("append", "append", Append((5, 0, 17), (20, 3, 1), 2, 64, kv_dtype="e4m3")),
}


@pytest.fixture
def on_cpu(monkeypatch):
    fake_gpu.install(monkeypatch)


def measure(operation, workload, of, **how):
    how = {"repeats": 12, "seed": 1, "graph": True, "device": "cpu"} | how
    return bench.benchmark(operations()[operation], workload, of, **how)


def right(inputs):
    return peer.peers()["torch_sdpa"].steps["decode"](inputs)


def wrong(inputs):
    step = right(inputs)

    def run():
        step.run()
        step.outputs().out[0, 0, 0] += 1.0

    return replace(step, run=run)


def lazy(inputs):
    out = torch.zeros_like(inputs.q)
    return Step(lambda: None, lambda: Attention(out))


def breaker(inputs):
    def run():
        raise RuntimeError("out of resource: shared memory")

    return replace(lazy(inputs), run=run)


def refuser(inputs):
    raise peer.Refused("group 2 is unsupported")


def implementation(name, prepare, library="torch"):
    return Implementation(name, name, library, PEER_POLICY, "", prepare)


EVERYONE = {
    item.name: item
    for item in (
        implementation("decode_fma", right),
        implementation("decode_mma", right),
        implementation("wrong", wrong, library="cuda"),
        implementation("lazy", lazy),
        implementation("breaker", breaker),
        implementation("refuser", refuser),
        implementation("absent", right, library="flashinfer"),
    )
}


def test_only_outputs_within_their_bound_are_measured(on_cpu):
    workload = Decode.uniform(2, 40, q_heads=4, kv_heads=2, head_dim=128, dtype="fp16")
    missing = {"flashinfer": "flashinfer-python is not installed"}
    result = measure("decode", workload, EVERYONE.values(), missing=missing)
    assert list(result.measured) == ["decode_fma", "decode_mma"]
    measured = result.measured["decode_mma"]
    assert measured.graph.median_s == measured.times.median_s == 1e-3
    assert (measured.eager, measured.plain) == (None, None)
    assert 0 < measured.errors.bound_ratio < 1
    reasons = {reason.name: (reason.metric, reason.words) for reason in result.reasons}
    assert reasons["refuser"] == ("refused", "group 2 is unsupported")
    assert reasons["breaker"] == ("failed", "out of resource: shared memory")
    assert reasons["absent"] == ("unavailable", "flashinfer-python is not installed")
    for name in ("wrong", "lazy"):
        assert reasons[name][0] == "failed"
        assert "of its bound, allowed: 1" in reasons[name][1]
    assert [line.split(" on ")[0] for line in result.failures] == ["wrong"]
    assert result.sensors["sm_clock_mhz"] == 1980.0


def test_what_goes_wrong_while_it_is_timed_is_seen(on_cpu, monkeypatch):
    def tires(inputs):
        step, runs = right(inputs), []

        def run():
            runs.append(None)
            if len(runs) < 3:
                step.run()

        return replace(step, run=run)

    def no_capture(action):
        raise RuntimeError("operation not permitted when stream is capturing")

    result = measure("decode", EVEN, [implementation("tires", tires)])
    assert not result.measured
    assert [reason.metric for reason in result.reasons] == ["failed"]
    monkeypatch.setattr(timing, "capture", no_capture)
    measured = measure("decode", EVEN, [EVERYONE["decode_mma"]]).measured["decode_mma"]
    assert measured.graph is None
    assert (measured.times.median_s, measured.eager.repeats) == (2e-3, 4)
    assert measured.note.startswith("not captured: operation not permitted")


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_right_output_passes_in_every_operation(on_cpu, name):
    operation, kernel, workload = WORKLOADS[name]
    ours = implementations(operation, on_and_off if operation == "mla" else list_first)[kernel]
    result = measure(operation, workload, [ours], graph=False)
    assert not result.reasons
    measured = result.measured[kernel]
    assert measured.errors.passed
    assert measured.plain.median_s == 1e-3
    assert measured.step.plan.kernel in kernel
    assert (measured.graph, measured.eager, measured.note) == (None, None, "")


def list_first(spec):
    return spec.policies[:1]


def ready(name):
    """Return a step that has run on a workload, and a judge of its outputs."""
    operation, kernel, workload = WORKLOADS[name]
    policies = on_and_off if operation == "mla" else list_first
    ours = implementations(operation, policies)[kernel]
    inputs = operations()[operation].inputs(workload, Normal(0, "cpu"))
    step, judge = ours.prepare(inputs), judge_of(operation, inputs)
    bench.poison(step)
    step.run()
    return step, lambda: judge(step.outputs(), ours.policy)


@pytest.mark.parametrize("name", ["ragged", "paged", "two widths", "mla"])
def test_another_rows_output_and_an_unwritten_row_do_not_pass(name):
    step, judge = ready(name)
    assert judge().passed
    out = step.outputs().out
    out[-1, 0] = out[0, 0]
    assert not judge().passed
    step.run()
    out[1] = float("nan")
    assert not judge().passed


@pytest.mark.parametrize("name", ["causal gradients", "grouped gradients"])
def test_wrong_gradients_do_not_pass(name):
    step, judge = ready(name)
    assert judge().passed

    def another_row(dq, dk, dv):
        dq[0] = dq[1]

    def not_scaled(dq, dk, dv):
        dk.mul_(8.0)

    def not_written(dq, dk, dv):
        dv[-1, 0, 3] = float("nan")

    for spoil in (another_row, not_scaled, not_written):
        right_ones = [x.clone() for x in step.outputs()]
        spoil(*step.outputs())
        assert not judge().passed, spoil.__name__
        assert judge().reason.startswith("worst errors over their bounds: dq ")
        for x, as_it_was in zip(step.outputs(), right_ones, strict=True):
            x.copy_(as_it_was)


@pytest.mark.parametrize("kv_dtype", [None, "e4m3", "e5m2"])
def test_an_append_writes_the_rows_again_and_again(kv_dtype):
    workload = replace(WORKLOADS["append"][2], kv_dtype=kv_dtype)
    inputs = operations()["append"].inputs(workload, Normal(0, "cpu"))
    step, judge = implementations("append")["append"].prepare(inputs), judge_of("append", inputs)
    assert not judge(step.outputs(), PEER_POLICY).passed
    for _ in range(2):
        bench.poison(step)
        step.run()
        assert judge(step.outputs(), PEER_POLICY).passed
    inputs.cache.v.flatten(0, 1)[inputs.slots[7], 1, 3] = 7
    found = judge(step.outputs(), PEER_POLICY)
    assert (found.passed, found.reason[:9]) == (False, "the pools")


def test_the_baseline_is_timed_in_the_same_turns_by_our_cuda_kernels(on_cpu):
    paged = WORKLOADS["paged"][2]
    plain = replace(paged, page_size=None)
    found = implementations("prefill")
    result = measure(
        "prefill",
        paged,
        [found["prefill_mma"], found["torch_fa2"]],
        graph=False,
        baseline=("ragged", plain),
    )
    assert list(result.measured) == ["prefill_mma", "prefill_mma ragged"]
    assert result.measured["prefill_mma ragged"].inputs.workload == plain
    assert [(reason.name, reason.metric, reason.words) for reason in result.reasons] == [
        ("torch_fa2", "refused", "dense tensors have no pages")
    ]


def test_our_kernels_and_all_peers_take_part():
    found = implementations("decode", on_and_off)
    assert {"decode_mma", "triton_decode on", "flashinfer_fa2", "torch_sdpa"} < set(found)
    assert "reference" not in {item.kernel for item in found.values()}


@pytest.mark.skipif(os.cpu_count() < 2, reason="a single core builds one after the other")
def test_a_simulation_prepares_the_cuda_kernels_at_the_same_time():
    """Both wait for each other when first prepared; one of two refuses, and says so once."""
    both, met = threading.Barrier(2, timeout=60), set()

    def after_meeting(name, prepare):
        def prepared(inputs):
            if name not in met:
                met.add(name)
                both.wait()
            return prepare(inputs)

        return implementation(name, prepared, library="cuda")

    of = [after_meeting("fine", right), after_meeting("refuses", refuser)]
    result = bench.simulate(operations()["decode"], EVEN, of, seed=1)
    assert list(result.measured) == ["fine"]
    assert [reason.words for reason in result.reasons] == ["group 2 is unsupported"]
