"""Tests of the measuring itself that need a GPU."""

import pytest
import torch

from labkernels.kernels.decode.inputs import decode_inputs
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.random_inputs import Normal
from labkernels.measure import (
    timing,
)
from labkernels.measure.judge.judge import judge_of
from labkernels.measure.peers.peer import peers_of

pytestmark = pytest.mark.gpu


def test_ceilings_are_those_of_a_gpu():
    rates = {}
    for name, (times, moved_bytes) in timing.ceilings(repeats=5).items():
        assert times.q25_s <= times.median_s <= times.q75_s
        rates[name] = moved_bytes / times.median_s
    assert rates["copy"] > 1e11
    # The same memory limits both; their rates would differ if a copy engine or a cache served one.
    assert 0.8 < rates["copy"] / rates["read"] < 1.25


def test_the_scrub_makes_a_small_read_come_from_memory():
    small = torch.randn(2**21, device="cuda")
    total = torch.empty((), device="cuda")
    replay = timing.capture(lambda: torch.sum(small, dim=0, out=total)).replay
    cold = timing.time_interleaved({"sum": replay}, repeats=30)["sum"].median_s
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    warm = []
    for _ in range(30):
        start.record()
        replay()
        end.record()
        end.synchronize()
        warm.append(start.elapsed_time(end) * 1e-3)
    assert cold > sorted(warm)[len(warm) // 2]


def test_an_eager_time_holds_the_launch_and_a_graph_time_does_not():
    x = torch.zeros(16, device="cuda")

    def many():
        for _ in range(20):
            x.add_(1.0)

    graph = timing.time_interleaved({"many": timing.capture(many).replay}, repeats=20)
    eager = timing.time_interleaved({"many": many}, repeats=20, eager=True)
    assert graph["many"].median_s < eager["many"].median_s


@pytest.mark.parametrize("name", peers_of("decode"))
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_peer_keeps_the_bound_and_can_be_captured(name, dtype):
    peer = peers_of("decode")[name]
    if peer.missing():
        pytest.skip(peer.missing())
    workload = Decode.uniform(3, 1000, q_heads=8, kv_heads=2, dtype=dtype)
    inputs = decode_inputs(workload, Normal(1))
    step = peer.steps["decode"](inputs)
    replay = timing.capture(step.run).replay
    step.outputs().out.fill_(float("nan"))
    replay()
    assert judge_of("decode", inputs)(step.outputs(), peer.policy).passed
