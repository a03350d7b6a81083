"""A verb computes what a tensor holds, and refuses by its own name what it does not compute."""

import subprocess
import sys

import pytest
import torch

import labkernels
from labkernels import PagedKV, RaggedKV, attention, decode, ops
from labkernels.kernels.caches.paged import QuantizedKV

Q = torch.randn(1, 4, 64, generator=torch.Generator().manual_seed(0)).half()
POOLS = torch.randn(2, 1, 16, 2, 64, generator=torch.Generator().manual_seed(1)).half()
ENDS = torch.tensor([0, 1], dtype=torch.int32)


def paged():
    return PagedKV(*POOLS, ENDS[:1].view(1, 1), torch.tensor([5], dtype=torch.int32))


def test_a_negation_that_torch_put_off_is_carried_out():
    put_off = torch.complex(Q.float(), Q.float()).conj().imag
    assert put_off.is_neg()
    later = torch._neg_view(Q)
    assert torch.equal(decode(later, paged()).out, decode(-Q, paged()).out)
    k = POOLS[0, 0, :1].contiguous()
    for at, given in enumerate((Q, k, k, ENDS, ENDS)):
        tensors = [Q, k, k, ENDS, ENDS]
        expected = attention(*tensors)[0]
        tensors[at] = torch._neg_view(-given)
        assert torch.equal(attention(*tensors)[0], expected)
        q, *kv, ends_q, ends_k = tensors
        assert torch.equal(labkernels.prefill(q, RaggedKV(*kv, ends_k), ends_q).out, expected)


@pytest.mark.parametrize("name", ["sinks", "alibi"])
def test_a_negation_of_a_logit_of_each_head_is_carried_out(name):
    logits = torch.linspace(-2, 2, 4)
    found = decode(Q, paged(), **{name: torch._neg_view(-logits)})
    assert torch.equal(found.out, decode(Q, paged(), **{name: logits}).out)


def test_where_memory_is_kept_a_negation_is_refused():
    with pytest.raises(ValueError, match=r"q.is_neg\(\) = True, allowed: False, as q.resolve_neg"):
        labkernels.decode_step(torch._neg_view(Q), paged())
    for name in (cache := paged().tensors):
        with pytest.raises(ValueError, match=f"{name}.is_neg"):
            PagedKV(**cache | {name: torch._neg_view(cache[name])})
    for name, like in (("out", Q), ("lse2", torch.zeros(1, 4))):
        with pytest.raises(ValueError, match=f"{name}.is_neg"):
            decode(Q, paged(), **{name: torch._neg_view(like.clone())})
    codes = POOLS.to(torch.float8_e4m3fn), torch._neg_view(torch.ones(2))
    with pytest.raises(ValueError, match="k_scale.is_neg"):
        QuantizedKV(*codes[0], ENDS[:1].view(1, 1), ENDS[1:], codes[1], torch.ones(2))


@pytest.mark.parametrize("scale", [1e-300, 1e-38, 1e38, 2.0**65])
def test_a_scale_whose_products_leave_fp32_is_refused(scale):
    with pytest.raises(ValueError, match="scale = .*, allowed: a positive number, 5.42"):
        decode(Q, paged(), scale=scale)


def test_an_output_that_requires_grad_is_refused_unless_gradients_are_off():
    out = torch.zeros_like(Q).requires_grad_()
    with pytest.raises(ValueError, match="out.requires_grad = True, allowed: False"):
        decode(Q, paged(), out=out)
    with torch.no_grad():
        assert decode(Q, paged(), out=out).out is out


def test_an_unknown_option_is_refused_in_the_name_of_the_verb():
    kv = RaggedKV(POOLS[0, 0], POOLS[1, 0], ENDS * 16)
    calls = {
        "decode": lambda: decode(Q, paged(), sliding_window=4),
        "decode_step": lambda: ops.decode_step(Q, paged(), sliding_window=4),
        "prefill": lambda: labkernels.prefill(Q, kv, ENDS, sliding_window=4),
        "prefill_step": lambda: ops.prefill_step(Q, kv, ENDS, sliding_window=4),
        "mla_decode": lambda: labkernels.mla_decode(Q, Q, None, sliding_window=4),
        "with_kvcache": lambda: labkernels.with_kvcache(Q, paged(), Q, Q, ENDS, sliding_window=4),
        "backward": lambda: labkernels.backward(*(Q,) * 6, ENDS, ENDS, sliding_window=4),
        "varlen_qkvpacked": lambda: labkernels.varlen_qkvpacked(Q, ENDS, sliding_window=4),
    }
    for verb, call in calls.items():
        words = rf"^{verb}\(\) got an unexpected option 'sliding_window'"
        with pytest.raises(TypeError, match=words):
            call()


def test_the_bench_of_a_bare_wheel_names_the_extra():
    code = (
        "import sys; sys.modules['pandas'] = None\n"
        "import labkernels\n"
        "try: labkernels.Bench\n"
        "except ModuleNotFoundError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "labkernels.Bench needs pandas: pip install 'labkernels[plots]'\n"
