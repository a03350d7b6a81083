"""The peer of FlashAttention-4 calls its package rightly; torch stands in for the package."""

import sys
from types import ModuleType

import pytest

from labkernels.measure.peers import flash_attention, peer

torch = pytest.importorskip("torch")

from labkernels.kernels.backward.inputs import backward_inputs  # noqa: E402
from labkernels.kernels.backward.workload import Backward  # noqa: E402
from labkernels.kernels.prefill.inputs import prefill_inputs  # noqa: E402
from labkernels.kernels.prefill.workload import Prefill  # noqa: E402
from labkernels.kernels.random_inputs import Normal  # noqa: E402
from labkernels.measure.judge.gradients import GradientJudge  # noqa: E402
from labkernels.numerics.truth import oracle  # noqa: E402

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


def test_a_reason_says_what_is_missing():
    assert flash_attention.missing() == "flash-attn-4 is not installed"
