"""Outputs may not lie in the memory of inputs; verbs without gradients refuse requires_grad."""

from dataclasses import fields

import pytest
import torch

from labkernels import ops
from tests.kernels.append.cases import append_case
from tests.kernels.backward.cases import backward_case
from tests.kernels.contract import SPECS
from tests.kernels.decode.cases import bits
from tests.kernels.trials import short_case

OF_QUERIES = ("decode", "prefill", "mla")
KERNELS = ("decode_mma", "prefill_wgmma", "prefill_wgmma_basic", "mla_mma")  # one of each cache
every_verb = pytest.mark.parametrize("name", KERNELS)


def case_of(name):
    """Return a case whose query an output may replace, as it is contiguous."""
    case = short_case(name, dtype="bf16")
    first = case.queries[0]
    return case.changed(**{first: getattr(case, first).contiguous()}), first


def inside(tensor, shape, dtype):
    """Return a tensor that lies in another tensor's memory, from its beginning."""
    room = tensor.untyped_storage()
    return torch.empty(0, dtype=dtype).set_(room, 0, shape)


@every_verb
def test_outputs_in_the_memory_of_inputs_are_refused(name):
    case, first = case_of(name)
    q = getattr(case, first)
    for pool in [field.name for field in fields(case.kv)][:2]:
        held = getattr(case.kv, pool)
        before = held.clone()
        for output, dtype in (("out", q.dtype), ("lse2", torch.float32)):
            lying = inside(held, q.shape if output == "out" else q.shape[:2], dtype)
            with pytest.raises(ValueError, match=rf"{output} lies in the memory of {pool}, allow"):
                case.run(**{output: lying})
        assert torch.equal(bits(before), bits(held)), "something was written"
    shifted = torch.empty(q.numel() + 64, dtype=q.dtype)
    moved = case.changed(**{first: shifted[: q.numel()].view(q.shape).copy_(q)})
    with pytest.raises(ValueError, match="out lies in the memory of q"):
        moved.run(out=shifted[64:].view(q.shape))
    out = torch.empty(q.numel(), dtype=q.dtype).view(q.shape)
    with pytest.raises(ValueError, match="out lies in the memory of lse2"):
        case.run(out=out, lse2=inside(out, q.shape[:2], torch.float32))


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "kernel",
    [n for n, k in SPECS.items() if k.operation in OF_QUERIES and k.policies[0].out == "input"],
)
def test_an_output_may_take_the_place_of_the_query(kernel):
    """No bit changes, in any kernel, split or not."""
    case, first = case_of(kernel)
    for split in ({}, {"keys_per_split": 64}):
        apart = case.run(kernel, **split)
        place = getattr(case, first).clone()
        found = case.changed(**{first: place}).run(kernel, out=place, **split)
        assert found.out.data_ptr() == place.data_ptr()
        assert torch.equal(bits(found.out), bits(apart.out))


def test_gradients_in_the_memory_of_inputs_are_refused():
    case = backward_case((70, 90), (150, 200))
    dout, q, k, v = case.arguments[:4]
    for name, where, shape in (("dq", k, q.shape), ("dk", v, k.shape), ("dv", dout, v.shape)):
        with pytest.raises(ValueError, match=f"{name} lies in the memory of "):
            case.step(None, **{name: inside(where, shape, q.dtype)})


@every_verb
def test_a_verb_without_gradients_says_so(name):
    case, first = case_of(name)
    wanting = case.changed(**{first: getattr(case, first).clone().requires_grad_()})
    with pytest.raises(ValueError, match=r"requires_grad = True, allowed: False, or torch.no_grad"):
        wanting.run()
    with torch.no_grad():
        assert torch.equal(bits(wanting.run().out), bits(case.run().out))


def test_an_append_and_a_backward_pass_have_no_gradients_either():
    case = append_case((7, 3))
    with pytest.raises(ValueError, match=r"k_new.requires_grad = True, .* since append has no"):
        ops.append(case.cache, case.k_new.clone().requires_grad_(), *case.arguments[2:])
    dout, *rest = backward_case((3,), (5,)).arguments
    with pytest.raises(ValueError, match=r"dout.requires_grad = True, .* backward has no"):
        ops.backward(dout.clone().requires_grad_(), *rest)
