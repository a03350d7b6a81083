"""Every CUDA backward kernel keeps its contract on the CPU build."""

import itertools

import pytest
import torch

from labkernels import ops
from tests.kernels.backward.cases import CUDA_BACKWARDS, GRADIENTS, backward_case, run_checked
from tests.kernels.decode.cases import bits
from tests.kernels.prefill.cases import RAGGED_LAYOUTS, sums
from tests.kernels.prefill.test_contract import GROUPS, KV_LENS, Q_LENS

every_kernel = pytest.mark.parametrize("kernel", CUDA_BACKWARDS)
either_order = pytest.mark.parametrize("deterministic", [False, True], ids=["atomic", "ordered"])


def every_tile():
    """Yield every tile option of every head_dim, with alternating formats."""
    for name, spec in CUDA_BACKWARDS.items():
        for head_dim in spec.head_dims:
            for i, tile in enumerate(spec.tiles(spec.shape(head_dim=head_dim), spec.policies[0])):
                yield pytest.param(name, head_dim, tile.label, ("bf16", "fp16")[i % 2])


@pytest.mark.few_of_each("kernel", 3)
@every_kernel
@pytest.mark.parametrize("group", GROUPS)
def test_every_group(kernel, group):
    layout = RAGGED_LAYOUTS[group % len(RAGGED_LAYOUTS)]
    kv_heads = 2 if group < 8 else 1
    for causal in (False, True):
        case = backward_case(
            Q_LENS, KV_LENS, causal=causal, group=group, kv_heads=kv_heads, layout=layout
        )
        run_checked(case, kernel, deterministic=causal != (group % 2 == 0))


@pytest.mark.few_of_each("kernel", 2)
@pytest.mark.parametrize(("kernel", "head_dim", "tile", "dtype"), list(every_tile()))
def test_every_tile(kernel, head_dim, tile, dtype):
    case = backward_case((150, 3), (200, 3), kv_heads=1, head_dim=head_dim, dtype=dtype)
    assert run_checked(case, kernel, tile=tile).plan.tile == tile


@every_kernel
def test_every_policy(kernel):
    case = backward_case((20, 3), (40, 3), kv_heads=1, dtype="bf16")
    for policy in CUDA_BACKWARDS[kernel].policies:
        run_checked(case, kernel, policy=policy)


@every_kernel
@either_order
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_lengths_around_a_tile_and_a_step(kernel, causal, deterministic):
    lengths = (1, 15, 16, 17, 63, 64, 65, 127, 128, 129)
    for keys in (lengths, lengths[::-1], (129,) * len(lengths)):
        case = backward_case(lengths, keys, causal=causal, group=1, kv_heads=1)
        run_checked(case, kernel, deterministic=deterministic)


@every_kernel
@either_order
def test_no_query_and_no_key_at_all(kernel, deterministic):
    for q_lens, kv_lens in (((0, 0), (5, 0)), ((3, 40), (0, 0)), ((0,), (0,))):
        step = run_checked(backward_case(q_lens, kv_lens), kernel, deterministic=deterministic)
        assert not any(getattr(step, name).any() for name in GRADIENTS)


@every_kernel
@either_order
def test_logits_far_from_zero_and_a_large_lse2(kernel, deterministic):
    case = backward_case((40, 70), (70, 20), causal=True, scale=40.0)
    run_checked(case, kernel, deterministic=deterministic)


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
