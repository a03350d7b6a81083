"""What a kernel undoes again is less exact; the number to which weights are relative is free."""

import numpy as np
import pytest
import torch

from labkernels.measure.strangers import inputs, runs, wrong
from labkernels.measure.strangers.right import grouped, hidden_of
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.verdict import less_exact, twins
from labkernels.numerics.verdict.diagnosis import names


def _call(dtype):
    """Return a call in which one key of each row has all weight, and often values of 0."""
    return inputs.call("small integers", inputs.Shape(1, 4, 2, 40, 40, 32, causal=True), dtype, 5)


def _centred(call, factor=1.0):
    q, k, v = grouped(call, torch.float32)
    s = (4 * q @ k.mT * call.scale).masked_fill(hidden_of(call), -torch.inf)
    mean = v.mean(2, keepdim=True)
    return (torch.softmax(s, -1) @ (v - mean) + factor * mean).to(call.q.dtype)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_mean_of_v_that_is_added_back_is_no_bug(dtype):
    call = _call(dtype)
    sharp = type(call)(**{**vars(call), "scale": 4 * call.scale})
    found = runs.judged(sharp, _centred(call))
    assert found.answer in ("LESS EXACT", "ROUNDING"), found.summary()
    if dtype == "fp32":
        assert "mean of V" in found.why


def test_a_mean_that_is_lost_by_a_thousandth_is_a_bug(monkeypatch):
    monkeypatch.setattr(names, "of_output", lambda case: [])  # the search for a name takes longest
    call = _call("fp32")
    sharp = type(call)(**{**vars(call), "scale": 4 * call.scale})
    assert runs.judged(sharp, _centred(call, 0.999)).answer == "BUG"


def test_a_mistake_of_the_weights_is_not_excused_by_a_mean():
    call = inputs.call("normal", inputs.Shape(1, 4, 2, 40, 40, 32, causal=True), "bf16", 6)
    bug = wrong.scored(lambda w: 1.05 * w.s)
    assert runs.judged(call, wrong.run(bug, call)).answer == "BUG"


@pytest.mark.parametrize(("roundings", "excused"), [(7, True), (9, False)])
def test_a_mean_excuses_a_few_roundings_of_the_largest_value_and_no_more(roundings, excused):
    v = np.ones((3, 1, 16), np.float32)
    problem = Problem.packed(v[:2], v, v, [0, 3], cu_seqlens_q=[0, 2], scale=0.25)
    error = np.zeros((2, 1, 16))
    error[1, 0, 4] = roundings * 2.0**-24
    more = less_exact.of_largest(problem, error, np.full_like(error, 2.0**-30))
    assert (more is not None) == excused


# ---- V turned by a rotation


def _turned(call, back=1.0):
    """Return an output of which V's channels were mixed, and the output's unmixed, in fp32."""
    q, k, v = grouped(call, torch.float32)
    s = (q @ k.mT * call.scale).masked_fill(hidden_of(call), -torch.inf)
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


def test_channels_that_are_mixed_and_unmixed_are_no_bug(monkeypatch):
    monkeypatch.setattr(names, "of_output", lambda case: [])
    found = runs.judged(_spike(7), _turned(_spike(7)))
    assert found.answer == "LESS EXACT"
    assert "mixes the channels of V" in found.why
    lost = runs.judged(_spike(7), _turned(_spike(7), back=0.9999))
    assert lost.answer == "BUG"


# ---- weights relative to another number than the maximum


def _relative_to(call, rank):
    """Return an output of weights in 16 bits that are relative to a row's rank-th largest score."""
    q, k, v = grouped(call, torch.float32)
    s = (q @ k.mT * call.scale).masked_fill(hidden_of(call), -torch.inf)
    p = torch.exp(s - s.sort(-1, descending=True).values[..., rank, None])
    return ((p.to(call.q.dtype).float() @ v) / p.sum(-1, keepdim=True)).to(call.q.dtype)


@pytest.mark.parametrize("rank", [1, 40])
def test_a_reference_below_the_maximum_is_rounding(rank, monkeypatch):
    """Where few weights count, their roundings are a row's whole error, and each row has one."""
    monkeypatch.setattr(names, "of_output", lambda case: [])
    shape, answers = inputs.Shape(2, 12, 2, 1, 150, 96), []
    for seed in range(12):
        call = inputs.call("peaky", shape, "bf16", seed)
        answers.append(runs.judged(call, _relative_to(call, rank)).answer)
    assert "BUG" not in answers


def test_twins_with_other_references_are_asked_where_a_test_is_near_its_limit(monkeypatch):
    asked, outputs = [], twins.outputs

    def noted(problem, policy, kernels=twins.TWINS):
        asked.append(kernels)
        return outputs(problem, policy, kernels)

    monkeypatch.setattr(twins, "outputs", noted)
    monkeypatch.setattr(names, "of_output", lambda case: [])
    call = inputs.call("peaky", inputs.Shape(2, 12, 2, 1, 150, 96), "bf16", 4)
    assert runs.judged(call, 1.5 * _relative_to(call, 0)).answer == "BUG"
    assert twins.REFERENCES not in asked
    assert runs.judged(call, _relative_to(call, 1)).answer != "BUG"
    assert twins.REFERENCES in asked
