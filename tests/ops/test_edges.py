"""Arguments of a wrong type are refused by name, and autograd handles its edge cases."""

import numpy as np
import pytest
import torch

from labkernels import ops
from labkernels.kernels.backward.api import BackwardOptions
from labkernels.kernels.caches.latent import LatentKV
from labkernels.kernels.caches.paged import PagedKV
from labkernels.kernels.caches.ragged import RaggedKV
from labkernels.kernels.decode.api import DecodeOptions
from labkernels.kernels.packed_gqa.call import PackedOptions
from tests.kernels.append.cases import append_case
from tests.kernels.backward.cases import backward_case
from tests.kernels.decode.cases import decode_case
from tests.kernels.mla.cases import mla_case
from tests.kernels.prefill.cases import prefill_case, sums

CASE, PREFILL, GRADIENT = decode_case((7, 40)), prefill_case((3,), (9,)), backward_case((3,), (9,))
PAGED, LATENT = prefill_case((3,), (9,), page_size=16), mla_case((1, 2), (7, 40))
GROWN = append_case((7, 3), (40, 2), group=2)
CACHE = CASE.cache

PACKED = sorted(PackedOptions.__optional_keys__)
OPTIONS_OF_APPEND = ["checks", "kv_lens", "new_lens", "target"]
OF_ATTENTION = ["causal", "deterministic", "kv_lens", "q_lens", "scale"]
NAMES_BACKWARD = ("dout", "q", "k", "v", "out", "lse2", "cu_seqlens_q", "cu_seqlens_k")


def of_prefill(case):
    return {"q": case.q, "kv": case.kv, "cu_seqlens_q": case.cu_seqlens_q}


def of_attention():
    kv = PREFILL.kv
    ends = {"cu_seqlens_q": PREFILL.cu_seqlens_q, "cu_seqlens_k": kv.cu_seqlens}
    return {"q": PREFILL.q, "k": kv.k, "v": kv.v, **ends}


def of_mla():
    q = {"q_nope": LATENT.q_nope, "q_pe": LATENT.q_pe}
    return {**q, "cache": LATENT.kv, "cu_seqlens_q": LATENT.cu_seqlens_q}


def of_append(last="cu_seqlens_new"):
    return dict(zip(("cache", "k_new", "v_new", last), GROWN.arguments, strict=True))


# Every verb, the arguments that it takes, and the names of its options.
VERBS = {
    "decode": (ops.decode, {"q": CASE.q, "cache": CACHE}, sorted(DecodeOptions.__optional_keys__)),
    "prefill": (ops.prefill, of_prefill(PREFILL), PACKED),
    "prefill, paged": (ops.prefill, of_prefill(PAGED), PACKED),
    "varlen_qkvpacked": (
        ops.varlen_qkvpacked,
        {"qkv": torch.zeros(3, 3, 2, 64).half(), "cu_seqlens": sums((3,))},
        PACKED,
    ),
    "mla_decode": (ops.mla_decode, of_mla(), PACKED),
    "append": (ops.append, of_append(), OPTIONS_OF_APPEND),
    "backward": (
        ops.backward,
        dict(zip(NAMES_BACKWARD, GRADIENT.arguments, strict=True)),
        sorted(BackwardOptions.__optional_keys__),
    ),
    "attention": (ops.attention, of_attention(), OF_ATTENTION),
    "with_kvcache": (
        ops.with_kvcache,
        {"q": GROWN.k_new.contiguous(), **of_append("cu_seqlens_q")},
        PACKED,
    ),
    "PagedKV": (PagedKV, CACHE.tensors, []),
    "LatentKV": (LatentKV, LATENT.kv.tensors, []),
    "RaggedKV": (RaggedKV, PREFILL.kv.tensors, []),
}
FLAGS = ("causal", "checks", "deterministic")
COUNTS = ("keys_per_split", "splits")
WRONG = {
    "None": None,
    "text": "x",
    "True": True,
    "fraction": 1.5,
    "nan": float("nan"),
    "negative": -1,
    "list of text": ["x"],
    "list of True": [True],
    "list of fractions": [1.5],
    "dict": {},
    "array": np.zeros(3),
    "tensor": torch.zeros(2, 2, dtype=torch.float64),
    "object": object(),
    "another cache": LATENT.kv,
    "ragged": PREFILL.kv,
}


def is_right(verb, name, what):
    """Return whether a value that is wrong for most arguments is right for this one."""
    optional = name not in VERBS[verb][1] or (verb, name) == ("mla_decode", "cu_seqlens_q")
    return {
        "None": optional,
        "True": name in FLAGS,
        "fraction": name == "scale",
        "another cache": (verb, name) == ("mla_decode", "cache"),
        "ragged": name == "kv",
    }.get(what, False)


@pytest.mark.parametrize("verb", VERBS)
def test_a_wrong_type_is_named_in_a_value_error(verb):
    run, given, options = VERBS[verb]
    for name in (*given, *options):
        for what, value in WRONG.items():
            if is_right(verb, name, what):
                continue
            with pytest.raises(ValueError, match=name.removesuffix("_k")):
                pytest.fail(f"{name} may be {what}: {run(**given | {name: value})}")


def test_equal_values_of_other_types_are_told_apart():
    """Prepared calls are kept by their options, and 1 == 1.0 == True."""
    for right, wrong in ((1, True), (1, 1.0), (64, 64.0)):
        for name in COUNTS:
            ops.prefill(**of_prefill(PREFILL), **{name: right})
            with pytest.raises(ValueError, match=rf"{name} = {wrong}, allowed: 1 to "):
                ops.prefill(**of_prefill(PREFILL), **{name: wrong})
    ops.prefill(**of_prefill(PREFILL), causal=True, scale=1.0)
    for name, allowed in (("causal", "True, False"), ("scale", "a positive number")):
        wrong = 1 if name == "causal" else True
        with pytest.raises(ValueError, match=f"{name} = {wrong}, allowed: {allowed}"):
            ops.prefill(**of_prefill(PREFILL), **{"causal": True, "scale": 1.0, name: wrong})


def leaves(n, dtype=torch.float16):
    shapes = ((n, 4, 64), (9, 2, 64), (9, 2, 64))
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in shapes]


def test_no_query_tokens_have_gradients_of_zero():
    q, k, v = leaves(0)
    out, _ = ops.attention(q, k, v, sums((0,)), sums((9,)))
    out.float().sum().backward()
    assert q.grad.shape == q.shape
    assert not k.grad.any()
    assert not v.grad.any()


@pytest.mark.parametrize("kind", [torch.float32, torch.float16], ids=str)
def test_autocast_casts_as_for_torchs_attention(kind):
    given, ends = leaves(3, kind), (sums((3,)), sums((9,)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, _ = ops.attention(*given, *ends)
        heads = [x.repeat_interleave(4 // x.shape[1], 1).transpose(0, 1)[None] for x in given]
        torchs = torch.nn.functional.scaled_dot_product_attention(*heads)
    assert out.dtype == torchs.dtype == torch.bfloat16
    out.sum().backward()
    assert all(x.grad.dtype == kind for x in given)
    plain, _ = ops.attention(*(x.bfloat16() for x in given), *ends)
    assert torch.equal(out, plain)
