"""On a real GPU, calls read nothing back, and share no counters and no memory."""

import functools

import pytest
import torch

from labkernels import ops
from tests.kernels.decode.cases import assert_same, decode_case
from tests.kernels.mla.cases import mla_case
from tests.kernels.prefill.cases import sums

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),  # torch calls it a prototype
]

SPLIT = {"keys_per_split": 128}


def test_a_training_loop_reads_nothing_after_its_first_step(no_reading):
    lengths = (300, 17, 200)
    shape = (sum(lengths), 4, 128)
    q, k, v = (torch.randn(shape, device="cuda").bfloat16().requires_grad_() for _ in "qkv")
    ends = sums(lengths).cuda()
    for step in range(4):
        out, _ = ops.attention(q, k, v, ends, ends, causal=True)
        out.square().sum().backward()
        with torch.no_grad():
            for x in (q, k, v):
                x -= 1e-3 * x.grad
                x.grad = None
        if step == 0:
            no_reading()


def test_a_serving_loop_that_knows_its_lengths_reads_nothing(no_reading):
    case, lengths = decode_case((900, 60), head_dim=128, device="cuda"), [900, 60]
    ops.decode(case.q, case.cache, kv_lens=lengths)
    no_reading()
    for _ in range(3):
        case.cache.kv_len.sub_(1)  # torch sees a change, but decode does not read the lengths
        lengths = [length - 1 for length in lengths]
        ops.decode(case.q, case.cache, kv_lens=lengths)


def test_two_streams_share_no_counter():
    case = decode_case((1000, 700), head_dim=128, device="cuda")
    expected = ops.decode(case.q, case.cache, **SPLIT)
    torch.cuda.synchronize()
    streams, found = [torch.cuda.Stream() for _ in range(4)], []
    for turn in range(40):
        with torch.cuda.stream(streams[turn % 4]):
            found.append(ops.decode(case.q, case.cache, **SPLIT))
    torch.cuda.synchronize()
    for step in found:
        assert_same(step, expected)


@pytest.mark.parametrize("operation", ["decode", "mla"])
def test_a_call_that_is_captured_has_memory_of_its_graph(operation):
    """The step is deleted after the capture, and others take memory and counters meanwhile."""
    known = {"kv_lens": [1000, 700], **SPLIT}
    if operation == "decode":
        case = decode_case((1000, 700), head_dim=128, device="cuda")
    else:
        case = mla_case((1, 1), (1000, 700), device="cuda")
    call = functools.partial(case.run, **known)
    expected = call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step = call()
        out, lse2 = step.out, step.lse2
    del step
    for _ in range(5):
        out.fill_(float("nan"))
        others = [call() for _ in range(3)]
        graph.replay()
        assert torch.equal(out, expected.out)
        assert torch.equal(lse2, expected.lse2)
        for other in others:
            assert_same(other, expected)
