"""On a real GPU, merges and cascades have the bits of the CPU build."""

import pytest
import torch

from labkernels import ops
from labkernels.kernels.caches.paged import PagedKV
from labkernels.measure import timing
from tests.kernels.decode.cases import bits
from tests.kernels.merge_states import test_merge_states as on_cpu

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", on_cpu.DTYPES)
@pytest.mark.parametrize("states", [1, 2, 3, 37])
@pytest.mark.parametrize("channels", [32, 96, 128, 512])
def test_bits_of_the_cpu_build(dtype, states, channels):
    outs, lse2s = on_cpu.drawn(states, 211, 5, channels, dtype)
    lse2s[0, ::3] = -torch.inf
    want = ops.merge_states(outs, lse2s)
    merged = ops.merge_states(outs.cuda(), lse2s.cuda())
    assert torch.equal(bits(merged.out.cpu()), bits(want.out))
    assert torch.equal(bits(merged.lse2.cpu()), bits(want.lse2))


def on_the_gpu(cache):
    return PagedKV(*(tensor.cuda() for tensor in cache.tensors.values()))


def test_a_cascade_has_the_bits_of_the_cpu_build_also_in_a_graph():
    q, prefix, own, _ = on_cpu.cascade(121, (5, 0, 33, 64, 1), channels=128)
    want = ops.cascade_decode(q, prefix, own, target="h200")
    step = ops.cascade_decode_step(q.cuda(), on_the_gpu(prefix), on_the_gpu(own))
    graph = timing.capture(step.run)
    step.out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(bits(step.out.cpu()), bits(want.out))
    assert torch.equal(step.lse2.cpu(), want.lse2)
