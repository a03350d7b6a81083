"""What a kernel undoes again is less exact; the number to which weights are relative is free."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from labkernels.measure.mistakes.attention import grouped, hidden_of
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.verdict import less_exact
from labkernels.policy import NumericPolicy
from tests.measure.strangers import inputs, runs, wrong


def _call(dtype):
    """Return a call in which one key of each row has all weight, and often values of 0."""
    call = inputs.call("small integers", inputs.Shape(1, 4, 2, 40, 40, 32, causal=True), dtype, 5)
    return replace(call, scale=4 * call.scale)


def _scored(call):
    """Return the scores and V of each query head in fp32."""
    q, k, v = grouped(call, torch.float32)
    return (q @ k.mT * call.scale).masked_fill(hidden_of(call), -torch.inf), v


def _centred(call, factor=1.0):
    s, v = _scored(call)
    mean = v.mean(2, keepdim=True)
    return (torch.softmax(s, -1) @ (v - mean) + factor * mean).to(call.q.dtype)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_mean_of_v_that_is_added_back_is_no_bug(dtype):
    call = _call(dtype)
    found = runs.judged(call, _centred(call))
    assert found.answer in ("LESS EXACT", "ROUNDING"), found.summary()
    if dtype == "fp32":
        assert "mean of V" in found.why


def test_a_mean_that_is_lost_by_a_thousandth_is_a_bug(unnamed):
    call = _call("fp32")
    assert runs.judged(call, _centred(call, 0.999)).answer == "BUG"


def test_a_mistake_of_the_weights_is_not_excused_by_a_mean():
    call = inputs.call("normal", inputs.Shape(1, 4, 2, 40, 40, 32, causal=True), "bf16", 6)
    bug = wrong.scored(lambda w: 1.05 * w.s)
    assert runs.judged(call, wrong.run(bug, call)).answer == "BUG"


def _as_if_of_values(problem, error, sigma, policy):
    return [words for words, _, _ in less_exact.of_values(problem, policy, error, sigma)]


@pytest.mark.parametrize(("roundings", "excused"), [(7, True), (9, False)])
def test_a_mean_excuses_a_few_roundings_of_the_largest_value_and_no_more(roundings, excused):
    v = np.ones((3, 1, 16), np.float32)
    problem = Problem.packed(v[:2], v, v, [0, 3], cu_seqlens_q=[0, 2], scale=0.25)
    error = np.zeros((2, 1, 16))
    error[1, 0, 4] = roundings * 2.0**-24
    given = problem, error, np.full_like(error, 2.0**-30), NumericPolicy(p="fp32", out="fp32")
    assert bool(_as_if_of_values(*given)) == excused


@pytest.mark.parametrize(("of_one_weight", "excused"), [(1.0, True), (8.0, False)])
def test_a_mean_excuses_the_rounding_of_weights_about_it_and_no_more(of_one_weight, excused):
    """The first row sees a key of value 0 alone, while the mean of V is 1.5."""
    v = np.full((4, 1, 16), 2.0, np.float32)
    v[0] = 0
    problem = Problem.packed(v, v, v, [0, 4], cu_seqlens_q=[0, 4], scale=0.25, causal=True)
    error = np.zeros((4, 1, 16))
    error[0] = of_one_weight * 1.5 * 2.0**-9
    given = problem, error, np.full_like(error, 2.0**-30), NumericPolicy(p="bf16", out="bf16")
    assert bool(_as_if_of_values(*given)) == excused


def _centred_in_16_bits(call, times=1.0):
    """Return an output of P in 16 bits, relative to a number above the maximum, and V - mean."""
    s, v = _scored(call)
    p = torch.exp(s - s.amax(-1, keepdim=True) - 1.3)
    mean = v.mean(2, keepdim=True)
    o = p.to(call.q.dtype).float() @ (v - mean) / p.sum(-1, keepdim=True)
    return (o + times * mean).to(call.q.dtype)


@pytest.mark.parametrize(("times", "answer"), [(1.0, "LESS EXACT"), (0.98, "BUG")])
def test_a_mean_far_from_what_a_row_sees_makes_weights_in_16_bits_less_exact(
    times, answer, unnamed
):
    call = inputs.call("peaky", inputs.Shape(1, 4, 2, 40, 40, 64, causal=True), "bf16", 3)
    call.v[:, :, 20:] += 40.0  # early rows see none of these keys
    found = runs.judged(call, _centred_in_16_bits(call, times))
    assert found.answer == answer, found.summary()
    assert ("mean of V" in found.why) == (answer == "LESS EXACT")


# ---- V turned by a rotation


def _turned(call, back=1.0):
    """Return an output of which V's channels were mixed, and the output's unmixed, in fp32."""
    s, v = _scored(call)
    drawn = torch.randn(
        v.shape[-1], v.shape[-1], generator=torch.Generator().manual_seed(3)
    ).double()
    turn = torch.linalg.qr(drawn)[0]
    mixed = torch.softmax(s, -1) @ (v.double() @ turn).float()
    return (back * (mixed.double() @ turn.T)).float()


def _spike(seed):
    shape = inputs.Shape(1, 4, 2, 40, 40, 32, causal=True)
    call = inputs.call("normal", shape, "fp32", seed)
    call.v[:, :, :, :] *= 1e-6
    call.v[:, :, 3, 5] = 1000.0
    return call


def test_channels_that_are_mixed_and_unmixed_are_no_bug(unnamed):
    found = runs.judged(_spike(7), _turned(_spike(7)))
    assert found.answer == "LESS EXACT"
    assert "mixes the channels of V" in found.why
    lost = runs.judged(_spike(7), _turned(_spike(7), back=0.9999))
    assert lost.answer == "BUG"


# ---- weights relative to another number than the maximum


def _relative_to(call, rank):
    """Return an output of weights in 16 bits that are relative to a row's rank-th largest score."""
    s, v = _scored(call)
    p = torch.exp(s - s.sort(-1, descending=True).values[..., rank, None])
    return ((p.to(call.q.dtype).float() @ v) / p.sum(-1, keepdim=True)).to(call.q.dtype)


@pytest.mark.parametrize("rank", [1, 40])
def test_a_reference_below_the_maximum_is_rounding(rank, unnamed):
    """Where few weights count, their roundings are a row's whole error, and each row has one."""
    shape, answers = inputs.Shape(2, 12, 2, 1, 150, 96), []
    for seed in range(12):
        call = inputs.call("peaky", shape, "bf16", seed)
        answers.append(runs.judged(call, _relative_to(call, rank)).answer)
    assert "BUG" not in answers


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("above", [5.0, -2.0])
def test_a_reference_as_far_from_the_maximum_in_all_rows_is_rounding(dtype, above, unnamed):
    """The largest weight is e^5 or e^-2, whose rounding is the same part of it in all rows."""
    for seed in range(3):
        call = inputs.call("peaky", inputs.Shape(1, 4, 2, 40, 40, 64, causal=True), dtype, seed)
        s, v = _scored(call)
        p = torch.exp(s - s.amax(-1, keepdim=True) + above)
        out = ((p.to(call.q.dtype).float() @ v) / p.sum(-1, keepdim=True)).to(call.q.dtype)
        assert runs.judged(call, out).answer == "ROUNDING"


# ---- what fp32 rounds beside P in 16 bits


def test_the_roundings_of_huge_scores_count_beside_those_of_weights_in_16_bits(unnamed):
    """One fp32 spacing of a score of 20,000 is 2^-9, four times the roundoff of fp16."""
    for seed in range(4):
        call = inputs.call("normal", inputs.Shape(1, 4, 2, 33, 96, 128, causal=True), "fp16", seed)
        k = 30 * call.k
        k[:, :, 1::2] = k[:, :, ::2]
        k[:, :, 1::2, 0] += 0.0625  # neighbours have scores that differ by about one
        huge = replace(call, q=200 * call.q, k=k)
        s, v = _scored(huge)
        p = torch.exp(s - s.amax(-1, keepdim=True))
        out = (p.half().float() @ v / p.sum(-1, keepdim=True)).half()
        assert runs.judged(huge, out).answer == "ROUNDING"
        assert runs.judged(huge, 1.01 * out).answer == "BUG"


def test_ways_whose_kernels_make_no_error_explain_nothing(unnamed):
    """A row that sees one key has no rounding, so that no twin errs."""
    call = inputs.call("normal", inputs.Shape(1, 4, 2, 9, 40, 32, causal=True), "fp16", 0)
    own = replace(call, window_left=0)
    out = own.v.repeat_interleave(2, 1)[:, :, 31:].clone()
    assert runs.judged(own, out).answer == "ROUNDING"
    out[0, 0, 0, 0] *= 1.004
    assert runs.judged(own, out).answer == "BUG"
