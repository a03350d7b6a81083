"""An ordered backward pass has its bits alone and again; what it cannot compute is refused."""

import itertools

import pytest
import torch

from labkernels import ops
from tests.kernels.backward.cases import CUDA_BACKWARDS, GRADIENTS, backward_case
from tests.kernels.decode.cases import bits, sums

every_kernel = pytest.mark.parametrize("kernel", CUDA_BACKWARDS)


@every_kernel
def test_an_ordered_pass_is_the_same_alone_and_among_others(kernel):
    options = {"kernel": kernel, "causal": True, "deterministic": True}
    lengths = (70, 33, 20)
    case = backward_case(lengths, lengths, layout="thd")
    together = ops.backward(*case.arguments, **options)
    assert together.plan.batch_invariant
    ends = sums(lengths).tolist()
    for first, end in itertools.pairwise(ends):
        rows = (x[first:end] for x in case.arguments[:6])
        alone = ops.backward(*rows, *[sums((end - first,))] * 2, **options)
        for name in GRADIENTS:
            assert torch.equal(bits(getattr(alone, name)), bits(getattr(together, name)[first:end]))


@every_kernel
def test_a_step_runs_again_and_again(kernel):
    case = backward_case((70, 0, 5), (90, 3, 5))
    step = case.step(kernel, deterministic=True)
    step.run()
    first = [getattr(step, name).clone() for name in GRADIENTS]
    for name in GRADIENTS:
        getattr(step, name).fill_(torch.nan)
    step.run()
    for name, before in zip(GRADIENTS, first, strict=True):
        assert torch.equal(bits(getattr(step, name)), bits(before))


def refused():
    case = backward_case((20,), (30,))
    dout, q, k, v, out, lse2, ends_q, ends_k = case.arguments
    yield "dout.dtype", (dout.float(), q, k, v, out, lse2, ends_q, ends_k), {}
    yield "out.shape", (dout, q, k, v, out[:3], lse2, ends_q, ends_k), {}
    yield "lse2.dtype", (dout, q, k, v, out, lse2.double(), ends_q, ends_k), {}
    yield "lse2: shape", (dout, q, k, v, out, lse2[:, :1], ends_q, ends_k), {}
    yield "v.shape", (dout, q, k, v[..., :32], out, lse2, ends_q, ends_k), {}
    yield "cu_seqlens_q", (dout, q, k, v, out, lse2, sums((21,)), ends_k), {}
    yield "cu_seqlens_q", (dout, q, k, v, out, lse2, sums((10, 10)), ends_k), {}
    yield "scale", case.arguments, {"scale": -1.0}
    yield "kernel", case.arguments, {"kernel": "prefill_mma"}
    yield "tile", case.arguments, {"tile": "1x1x1x1x1"}
    yield "dq", case.arguments, {"dq": torch.empty_like(q)[:3]}


@pytest.mark.parametrize(("word", "arguments", "options"), list(refused()))
def test_what_cannot_be_done_is_refused_by_name(word, arguments, options):
    with pytest.raises(ValueError, match=word) as raised:
        ops.backward_step(*arguments, **options)
    assert "allowed" in str(raised.value)


@every_kernel
def test_a_tile_of_another_order_is_refused(kernel):
    spec, case = CUDA_BACKWARDS[kernel], backward_case((20,), (30,))
    atomic = next(
        t for t in spec.tiles(spec.shape(head_dim=64, rows=1), spec.policies[0]) if t.dq == "atomic"
    )
    with pytest.raises(ValueError, match="allowed with deterministic"):
        case.step(kernel, tile=atomic.label, deterministic=True)
