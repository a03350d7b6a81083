"""Criteria gives the answer of the whole verdict, and searches no name past the bound."""

from types import SimpleNamespace

import pytest
import torch

from labkernels import ops
from labkernels.kernels.prefill.inputs import prefill_inputs
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.random_inputs import Normal
from labkernels.kernels.registry import discover
from labkernels.measure.judge import criteria
from labkernels.measure.judge.criteria import ACCEPTED, REFUSED, VERDICT, Criteria

LENGTHS = (1, 5, 37)


@pytest.fixture(scope="module")
def judged():
    """Return the criteria on ragged inputs, a right output, and its policy."""
    inputs = prefill_inputs(Prefill(LENGTHS, LENGTHS, 2, 1, 64, causal=True), Normal(0, "cpu"))
    done = ops.prefill(inputs.q, inputs.kv, inputs.cu_seqlens_q, causal=True, kernel="prefill_mma")
    posed = SimpleNamespace(dtype="bf16", problem=inputs.problem)
    return Criteria(posed), done.out, discover()["prefill_mma"].policies[0]


def changed(out, how):
    out = out.clone()
    if how == "NaN":
        out[3, 1, 5] = torch.nan
    elif how == "infinity":
        out[3, 1, 5] = torch.inf
    elif how == "a row of another":
        out[20] = out[30]
    elif how == "a scale":
        out *= 1.01
    elif how == "a channel":
        out[-1, 0, 0] += 0.5
    return out


@pytest.mark.parametrize(
    ("how", "word"),
    [
        ("", ACCEPTED),
        ("NaN", REFUSED),
        ("infinity", REFUSED),
        ("a row of another", REFUSED),
        ("a scale", REFUSED),
        ("a channel", REFUSED),
    ],
)
def test_the_word_is_that_of_the_whole_verdict(judged, how, word):
    judge, out, policy = judged
    out = changed(out, how)
    whole = judge.answers(out, policy, judged=judge.verdict(out, policy))
    assert whole[VERDICT] == word
    assert judge.answers(out, policy) == whole


@pytest.mark.parametrize("how", ["NaN", "a row of another"])
def test_past_the_bound_no_name_is_searched(judged, how, monkeypatch):
    judge, out, policy = judged
    monkeypatch.setattr(criteria.verdict, "decide", None)
    assert judge.answers(changed(out, how), policy)[VERDICT] == REFUSED
