"""Outputs may not lie in the memory of inputs; verbs without gradients refuse requires_grad."""

import pytest
import torch

from labkernels import ops
from tests.kernels.append.cases import append_case
from tests.kernels.backward.cases import backward_case
from tests.kernels.contract import DECODERS, MLAS, PREFILLS
from tests.kernels.decode.cases import bits, decode_case
from tests.kernels.mla.cases import mla_case
from tests.kernels.prefill.cases import prefill_case

SPLIT = {"keys_per_split": 64}


def decode_arguments():
    case = decode_case((200, 150), dtype="bf16")
    return ops.decode, (case.q.contiguous(), case.cache), vars(case.cache)


def prefill_arguments(page_size=None):
    case = prefill_case((3, 70), (150, 200), page_size=page_size, dtype="bf16")
    return ops.prefill, (case.q.contiguous(), case.kv, case.cu_seqlens_q), vars(case.kv)


def mla_arguments():
    case = mla_case((1, 2), (150, 200))
    given = (case.q_nope.contiguous(), case.q_pe, case.kv, case.cu_seqlens_q)
    return ops.mla_decode, given, vars(case.kv)


def inside(tensor, shape, dtype):
    """Return a tensor that lies in another tensor's memory, from its beginning."""
    room = tensor.untyped_storage()
    return torch.empty(0, dtype=dtype).set_(room, 0, shape)


VERBS = [decode_arguments, prefill_arguments, lambda: prefill_arguments(16), mla_arguments]
IDS = ["decode", "ragged prefill", "paged prefill", "mla_decode"]


@pytest.mark.parametrize("verb", VERBS, ids=IDS)
def test_outputs_in_the_memory_of_inputs_are_refused(verb):
    run, arguments, kv = verb()
    q, pools = arguments[0], list(kv)[:2]
    for name in pools:
        before = kv[name].clone()
        for output, dtype in (("out", q.dtype), ("lse2", torch.float32)):
            shape = q.shape if output == "out" else q.shape[:2]
            lying = inside(kv[name], shape, dtype)
            with pytest.raises(ValueError, match=rf"{output} lies in the memory of {name}, allow"):
                run(*arguments, **{output: lying})
        assert torch.equal(bits(before), bits(kv[name])), "something was written"
    shifted = torch.empty(q.numel() + 64, dtype=q.dtype)
    moved = shifted[: q.numel()].view(q.shape).copy_(q)
    with pytest.raises(ValueError, match="out lies in the memory of q"):
        run(moved, *arguments[1:], out=shifted[64:].view(q.shape))
    out = torch.empty(q.numel(), dtype=q.dtype).view(q.shape)
    with pytest.raises(ValueError, match="out lies in the memory of lse2"):
        run(*arguments, out=out, lse2=inside(out, q.shape[:2], torch.float32))


KERNELS = ((decode_arguments, DECODERS), (prefill_arguments, PREFILLS), (mla_arguments, MLAS))
CASES = [
    pytest.param(verb, name, id=name)
    for verb, kernels in KERNELS
    for name, kernel in kernels.items()
    if kernel.policies[0].out == "input"
]


@pytest.mark.parametrize(("verb", "kernel"), CASES)
def test_an_output_may_take_the_place_of_the_query(verb, kernel):
    """No bit changes, in any kernel, split or not."""
    run, (q, *rest), _ = verb()
    for split in ({}, SPLIT):
        apart = run(q, *rest, kernel=kernel, **split)
        place = q.clone()
        found = run(place, *rest, kernel=kernel, out=place, **split)
        assert found.out.data_ptr() == place.data_ptr()
        assert torch.equal(bits(found.out), bits(apart.out))


def test_gradients_in_the_memory_of_inputs_are_refused():
    case = backward_case((70, 90), (150, 200))
    dout, q, k, v = case.arguments[:4]
    for name, where, shape in (("dq", k, q.shape), ("dk", v, k.shape), ("dv", dout, v.shape)):
        with pytest.raises(ValueError, match=f"{name} lies in the memory of "):
            case.step(None, **{name: inside(where, shape, q.dtype)})


@pytest.mark.parametrize("verb", VERBS, ids=IDS)
def test_a_verb_without_gradients_says_so(verb):
    run, (q, *rest), _ = verb()
    wanting = q.clone().requires_grad_()
    with pytest.raises(ValueError, match=r"requires_grad = True, allowed: False, or torch.no_grad"):
        run(wanting, *rest)
    with torch.no_grad():
        assert torch.equal(bits(run(wanting, *rest).out), bits(run(q, *rest).out))


def test_an_append_and_a_backward_pass_have_no_gradients_either():
    case = append_case((7, 3))
    with pytest.raises(ValueError, match=r"k_new.requires_grad = True, .* since append has no"):
        ops.append(case.cache, case.k_new.clone().requires_grad_(), *case.arguments[2:])
    dout, *rest = backward_case((3,), (5,)).arguments
    with pytest.raises(ValueError, match=r"dout.requires_grad = True, .* backward has no"):
        ops.backward(dout.clone().requires_grad_(), *rest)
