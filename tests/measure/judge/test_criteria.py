"""Criteria gives the answer of the whole verdict, and searches no name that it does not need."""

from types import SimpleNamespace

import pytest
import torch

from labkernels import ops
from labkernels.kernels.prefill.inputs import prefill_inputs
from labkernels.kernels.prefill.workload import Prefill
from labkernels.kernels.random_inputs import Normal
from labkernels.kernels.registry import discover
from labkernels.measure.judge.criteria import ACCEPTED, REFUSED, VERDICT, Criteria
from labkernels.numerics.verdict.diagnosis import search

LENGTHS = (1, 5, 137)


@pytest.fixture(scope="module")
def judged():
    """Return the criteria on ragged inputs, a right output, and its policy."""
    inputs = prefill_inputs(Prefill(LENGTHS, LENGTHS, 2, 1, 64, causal=True), Normal(0, "cpu"))
    done = ops.prefill(inputs.q, inputs.kv, inputs.cu_seqlens_q, causal=True, kernel="prefill_mma")
    posed = SimpleNamespace(dtype="bf16", problem=inputs.problem)
    return Criteria(posed), done.out, discover()["prefill_mma"].policies[0]


def changed(judge, out, how):
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
    elif how == "a small scale":  # all errors lie within their bounds
        out *= 1 + 2**-8
    elif how == "cut":  # within an ulp, where the name decides; of few rows it is undecided
        bits = torch.from_numpy(judge.truth).float().view(torch.int32)
        out.copy_((bits & ~0xFFFF).view(torch.float32))
    return out


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("how", "word"),
    [
        ("", ACCEPTED),
        ("infinity", REFUSED),
        ("NaN", REFUSED),
        ("a scale", REFUSED),
        ("a row of another", REFUSED),
        ("a small scale", REFUSED),
        ("cut", REFUSED),
        ("a channel", REFUSED),
    ],
)
def test_the_word_is_that_of_the_whole_verdict(judged, how, word):
    judge, out, policy = judged
    out = changed(judge, out, how)
    whole = judge.answers(out, policy, judged=judge.verdict(out, policy))
    assert whole[VERDICT] == word
    assert judge.answers(out, policy) == whole


def test_no_name_is_searched_beyond_an_ulp(judged, monkeypatch):
    judge, out, policy = judged
    monkeypatch.setattr(search, "of_output", None)
    assert judge.answers(changed(judge, out, "a small scale"), policy)[VERDICT] == REFUSED
