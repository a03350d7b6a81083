"""Peers are called rightly; torch stands in for the package of FlashAttention-4."""

import sys
from types import ModuleType

import numpy as np
import pytest
import torch

from labkernels.kernels.backward.inputs import backward_inputs
from labkernels.kernels.backward.workload import Backward
from labkernels.kernels.caches.paged import PagedKV
from labkernels.kernels.decode.inputs import DecodeInputs, decode_inputs
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.prefill.inputs import prefill_inputs
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.random_inputs import Normal
from labkernels.measure.implementation import implementations
from labkernels.measure.judge.gradients import GradientJudge
from labkernels.measure.peers import flash_attention, flashinfer, peer
from labkernels.numerics.truth import oracle
from labkernels.numerics.truth.problem import Problem
from labkernels.variant import AttentionVariant


def scattered_cache(kv_lens, *, kv_heads=2, head_dim=64, page_size=16, dtype=torch.float16):
    generator = torch.Generator().manual_seed(5)
    pages = [-(-length // page_size) for length in kv_lens]
    numbers = torch.randperm(sum(pages) + 3, generator=generator)
    table = torch.zeros(len(kv_lens), max(pages), dtype=torch.int32)
    taken = 0
    for b, count in enumerate(pages):
        table[b, :count] = numbers[taken : taken + count]
        taken += count
    shape = (sum(pages) + 3, page_size, kv_heads, head_dim)
    k, v = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    lengths = torch.tensor(kv_lens, dtype=torch.int32)
    return PagedKV(k, v, table, lengths)


def test_page_lists_name_each_page_in_order():
    cache = scattered_cache([1, 16, 17, 40])
    indptr, indices, last_page_len = flashinfer.page_lists(cache)
    assert indptr.tolist() == [0, 1, 2, 4, 7]
    assert last_page_len.tolist() == [1, 16, 1, 8]
    expected = [cache.page_table[b, :n] for b, n in enumerate([1, 1, 2, 3])]
    assert torch.equal(indices, torch.cat(expected))
    assert {t.dtype for t in (indptr, indices, last_page_len)} == {torch.int32}
    with pytest.raises(peer.Refused, match="no last page"):
        flashinfer.page_lists(scattered_cache([16, 0]))


def test_sdpa_agrees_with_the_oracle():
    cache = scattered_cache([33, 33, 33])
    q = torch.randn(3, 6, 64, generator=torch.Generator().manual_seed(1)).half()
    workload = Decode.uniform(3, 33, q_heads=6, kv_heads=2, head_dim=64, dtype="fp16")
    step = peer.peers()["torch_sdpa"].steps["decode"](DecodeInputs(workload, q, cache, 0.125))
    out = step.outputs().out
    out.fill_(float("nan"))
    step.run()
    arrays = [t.numpy() for t in (q, cache.k, cache.v, cache.page_table, cache.kv_len)]
    expected, _ = oracle.attention(Problem(*arrays, scale=0.125))
    error = np.abs(out.numpy().astype(np.float64) - expected)
    assert error.max() <= 2e-3
    assert step.version == f"torch {torch.__version__}"


def test_a_peer_that_takes_dense_tensors_refuses_ragged_ones():
    inputs = decode_inputs(Decode((16, 17), 2, 2, 64, 16, "fp16"), Normal(0, "cpu"))
    with pytest.raises(peer.Refused, match="differs between requests"):
        peer.peers()["torch_sdpa"].steps["decode"](inputs)
    workload = Backward((96, 0, 130), (96, 7, 130), 2, 2, 64, causal=True)
    with pytest.raises(peer.Refused, match="lengths differ"):
        peer.peers()["torch_fa2"].steps["backward"](backward_inputs(workload, Normal(0, "cpu")))


def test_a_peer_is_not_taken_for_a_kernel_of_ours():
    for operation in ("decode", "prefill", "mla", "backward", "append"):
        for name, found in implementations(operation).items():
            assert found.is_ours == (found.spec is not None), name


def test_a_long_error_becomes_one_telling_line():
    error = RuntimeError("Error in kernel\n  frame 1\nUnsupported group_size: 16\n")
    assert peer.one_line(error) == "Unsupported group_size: 16"
    placed = RuntimeError("Error in function 'f' at /a/b/batch_decode.cu:70: Unsupported size: 5")
    assert peer.one_line(placed) == "Unsupported size: 5"
    assert peer.one_line(OSError("cannot open /usr/lib/x/libcuda.so.1")) == (
        "cannot open libcuda.so.1"
    )
    assert peer.one_line(RuntimeError("")) == "RuntimeError"
    assert len(peer.one_line(RuntimeError("x" * 999))) == 200


DRAW = Normal(0, "cpu")


@pytest.fixture
def asked(monkeypatch):
    """Return the options, beside tensors, of all calls of stand-ins for the package's functions."""
    calls = []

    def flash_attn_func(q, k, v, *, causal, softmax_scale, deterministic=False):
        calls.append({"causal": causal, "deterministic": deterministic})
        how = {"is_causal": causal, "scale": softmax_scale, "enable_gqa": True}
        heads_first = (x.transpose(1, 2) for x in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(*heads_first, **how)
        return out.transpose(1, 2), None

    def flash_attn_varlen_func(q, k, v, *, cu_seqlens_q, cu_seqlens_k, causal, **how):
        lengths = [how.pop(f"max_seqlen_{which}") for which in "qk"]
        cuts = [ends[1:-1].tolist() for ends in (cu_seqlens_q, cu_seqlens_k)]
        q_pieces, *kv_pieces = (torch.tensor_split(x, cuts[i > 0]) for i, x in enumerate((q, k, v)))
        pieces = zip(q_pieces, *kv_pieces, strict=True)
        outs = [
            flash_attn_func(*(x[None] for x in piece), causal=causal, **how)[0][0]
            for piece in pieces
        ]
        calls.append({"longest": lengths})
        return torch.cat(outs), None

    package, cute = ModuleType("flash_attn"), ModuleType("flash_attn.cute")
    cute.flash_attn_func, cute.flash_attn_varlen_func = flash_attn_func, flash_attn_varlen_func
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    monkeypatch.setitem(sys.modules, "flash_attn.cute", cute)
    monkeypatch.setattr(flash_attention.metadata, "version", lambda name: f"1.2 of {name}")
    return calls


@pytest.mark.parametrize("lengths", [(96, 96), (96, 17)])
def test_prefill_is_of_the_inputs_whether_dense_or_ragged(asked, lengths):
    inputs = prefill_inputs(Prefill(lengths, lengths, 4, 2, 64, causal=True, dtype="fp16"), DRAW)
    step = peer.peers()["flash_attention_4"].steps["prefill"](inputs)
    expected = oracle.attention(inputs.problem())[0]
    # Outputs below 4 are 2^-9 apart: one such step for rounded weights, one for rounded outputs.
    assert abs(step.outputs().out.double().numpy() - expected).max() < 2 * 2**-9
    ragged = {"longest": [96, 96]} in asked
    assert ragged == (lengths == (96, 17))
    assert step.version == "flash-attn-4 1.2 of flash-attn-4"


@pytest.mark.parametrize("name", ["flash_attention_4", "flash_attention_4_ordered"])
def test_gradients_are_of_the_inputs_and_ordered_if_asked(asked, name):
    work = Backward((130, 130), (130, 130), 2, 2, 64, causal=True)
    inputs = backward_inputs(work, DRAW)
    found = peer.peers()[name]
    step = found.steps["backward"](inputs)
    errors = GradientJudge(inputs)(step.outputs(), found.policy, step.forward)
    # the stand-in rounds more often than the bound allows; a wrong mask or scale errs by more
    assert all(error.max_abs < 0.1 for error in errors.values())
    assert {"causal": True, "deterministic": name.endswith("ordered")} in asked


def test_pages_are_refused(asked):
    inputs = prefill_inputs(Prefill((32,), (32,), 2, 2, 64, page_size=16), DRAW)
    with pytest.raises(peer.Refused, match="plain tensors"):
        peer.peers()["flash_attention_4"].steps["prefill"](inputs)
    assert not asked


VARIED = [
    {"window_left": 30},
    {"soft_cap": 2.0, "alibi": True},
    {"window_left": 30, "sinks": True},
]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("variant", VARIED, ids="-".join)
def test_flex_attention_computes_the_variant_and_its_gradients(variant, monkeypatch):
    """Its eager form does so on a CPU, where torch refuses gradients of the compiled one."""
    compiled, module = torch.compile, "torch.nn.attention.flex_attention"
    monkeypatch.setattr(torch, "compile", lambda f, **how: compiled(f, **how) if how else f)
    monkeypatch.setattr(f"{module}._validate_device", lambda *tensors: None)
    work = Backward((40, 40), (40, 40), 4, 2, 64, variant=AttentionVariant(True, **variant))
    inputs = backward_inputs(work, DRAW)
    found = peer.peers()["flex_attention"]
    step = found.steps["backward"](inputs)
    assert (step.forward.out - inputs.out).abs().max() < 2 * 2**-6  # two steps of bf16 below 4
    errors = GradientJudge(inputs)(step.outputs(), found.policy, step.forward)
    assert ("dsinks" in errors) == ("sinks" in variant)
    # torch rounds more often than the bound allows; a wrong variant errs by more
    assert all(error.max_abs < 0.1 for error in errors.values())


# torch warns once in a process, in whichever test is first.
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("of", ["decode", "prefill"])
@pytest.mark.parametrize("features", [{}, {"window_left": 9, "soft_cap": 2.0}, {"sinks": True}])
def test_flex_attention_computes_what_the_inputs_ask(of, features, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **how: function)
    variant = AttentionVariant(causal=of == "prefill", **features)
    lengths, heads = (70, 70), (4, 2, 64)
    inputs = (
        decode_inputs(Decode(lengths, *heads, 16, "fp16", variant=variant), DRAW)
        if of == "decode"
        else prefill_inputs(Prefill(*[lengths] * 2, *heads, dtype="fp16", variant=variant), DRAW)
    )
    out = peer.peers()["flex_attention"].steps[of](inputs).outputs().out
    assert abs(out.double().numpy() - oracle.attention(inputs.problem())[0]).max() < 2 * 2**-9
