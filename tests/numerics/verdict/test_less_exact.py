"""A kernel that takes the mean of V off and adds it back is less exact, and a lost mean a bug."""

import numpy as np
import pytest
import torch

from labkernels.measure.strangers import inputs, runs, wrong
from labkernels.measure.strangers.right import grouped, hidden_of
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.verdict import less_exact
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
