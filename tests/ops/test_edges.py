"""Wrong types are refused by name; autograd and spawned processes have their edge cases."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

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
from tests.kernels.decode.cases import bits, decode_case
from tests.kernels.mla.cases import mla_case
from tests.kernels.prefill.cases import prefill_case, sums

CASE, PREFILL, GRADIENT = decode_case((7, 40)), prefill_case((3,), (9,)), backward_case((3,), (9,))
PAGED, LATENT = prefill_case((3,), (9,), page_size=16), mla_case((1, 2), (7, 40))
GROWN = append_case((7, 3), (40, 2), group=2)
CACHE = CASE.cache
PREFIX = PagedKV(CACHE.k, CACHE.v, CACHE.page_table[:1], CACHE.kv_len[:1])

PACKED = sorted(PackedOptions.__optional_keys__)
OF_ATTENTION = ["causal", "deterministic", "kv_lens", "q_lens", "scale"]
NAMES = {
    "prefill": ("q", "kv", "cu_seqlens_q"),
    "mla": ("q_nope", "q_pe", "cache", "cu_seqlens_q"),
    "append": ("cache", "k_new", "v_new", "cu_seqlens_new"),
    "kvcache": ("q", "cache", "k_new", "v_new", "cu_seqlens_q"),
    "backward": ("dout", "q", "k", "v", "out", "lse2", "cu_seqlens_q", "cu_seqlens_k"),
    "attention": ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k"),
}
OF_GRADIENT = dict(zip(NAMES["backward"], GRADIENT.arguments, strict=True))


def named(kind, arguments):
    return dict(zip(NAMES[kind], arguments, strict=True))


# Every verb, the arguments that it takes, and the names of its options.
OF_PREFILL = named("prefill", PREFILL.arguments)
VERBS = {
    "decode": (ops.decode, {"q": CASE.q, "cache": CACHE}, sorted(DecodeOptions.__optional_keys__)),
    "prefill": (ops.prefill, OF_PREFILL, PACKED),
    "prefill, paged": (ops.prefill, named("prefill", PAGED.arguments), PACKED),
    "varlen_qkvpacked": (
        ops.varlen_qkvpacked,
        {"qkv": torch.zeros(3, 3, 2, 64).half(), "cu_seqlens": sums((3,))},
        PACKED,
    ),
    "mla_decode": (ops.mla_decode, named("mla", LATENT.arguments), PACKED),
    "append": (
        ops.append,
        named("append", GROWN.arguments),
        ["checks", "kv_lens", "new_lens", "target"],
    ),
    "backward": (ops.backward, OF_GRADIENT, sorted(BackwardOptions.__optional_keys__)),
    "attention": (
        ops.attention,
        {name: OF_GRADIENT[name] for name in NAMES["attention"]},
        OF_ATTENTION,
    ),
    "with_kvcache": (
        ops.with_kvcache,
        named("kvcache", (GROWN.k_new.contiguous(), *GROWN.arguments)),
        PACKED,
    ),
    "merge_states": (
        ops.merge_states,
        {"outs": torch.zeros(2, 3, 4, 64), "lse2s": torch.zeros(2, 3, 4)},
        ["checks", "lse2", "out", "target"],
    ),
    "cascade_decode": (
        ops.cascade_decode,
        {"q": CASE.q, "prefix": PREFIX, "cache": CACHE},
        ["checks", "lse2", "out", "scale", "target"],
    ),
    "PagedKV": (PagedKV, CACHE.tensors, []),
    "LatentKV": (LatentKV, LATENT.kv.tensors, []),
    "RaggedKV": (RaggedKV, PREFILL.kv.tensors, []),
}
FLAGS = ("causal", "batch_invariant", "checks", "deterministic")
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
        "fraction": name in ("scale", "soft_cap"),
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


def test_an_option_that_cascade_decode_lacks_is_said_of_that_verb():
    with pytest.raises(TypeError, match=r"cascade_decode\(\) got .* 'window_left'; it has scale"):
        ops.cascade_decode(CASE.q, PREFIX, CACHE, window_left=3)


def test_equal_values_of_other_types_are_told_apart():
    """Prepared calls are kept by their options, and 1 == 1.0 == True."""
    for right, wrong in ((1, True), (1, 1.0), (64, 64.0)):
        for name in COUNTS:
            ops.prefill(**OF_PREFILL, **{name: right})
            with pytest.raises(ValueError, match=rf"{name} = {wrong}, allowed: 1 to "):
                ops.prefill(**OF_PREFILL, **{name: wrong})
    ops.prefill(**OF_PREFILL, causal=True, scale=1.0)
    for name, allowed in (("causal", "True, False"), ("scale", "a positive number")):
        wrong = 1 if name == "causal" else True
        with pytest.raises(ValueError, match=f"{name} = {wrong}, allowed: {allowed}"):
            ops.prefill(**OF_PREFILL, **{"causal": True, "scale": 1.0, name: wrong})


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


def outputs():
    case = decode_case((7, 40))
    step = ops.decode_step(case.q, case.cache, keys_per_split=16)
    step.run()
    step.run()
    return [bits(x).tolist() for x in step.outputs()]


def test_a_spawned_process_gives_the_same_bits():
    here, case = outputs(), decode_case((7, 40))
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as spawned:
        assert spawned.submit(outputs).result(timeout=300) == here
        sent = spawned.submit(type, ops.decode_step(case.q, case.cache))
        with pytest.raises(TypeError, match="a Step cannot be pickled: it holds addresses"):
            sent.result(timeout=300)
