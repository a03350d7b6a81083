"""A number that a kernel takes off V and adds back: no bug, whichever number of V's range it is."""

import numpy as np
import pytest
import torch

from labkernels.measure.mistakes.attention import grouped, hidden_of, right_output
from labkernels.numerics.truth.layouts import of_dense
from labkernels.numerics.truth.problem import Problem, keys_of
from labkernels.numerics.verdict import centres, first_look
from labkernels.numerics.verdict.diagnosis import search
from labkernels.policy import NumericPolicy
from tests.measure.strangers import inputs, runs, wrong
from tests.numerics.verdict.searched import nothing

_SHAPE = inputs.Shape(1, 4, 2, 33, 60, 64, causal=True)
_NUMBERS = {
    "the first row": lambda v: v[:, :, :1],
    "the median": lambda v: v.median(2, keepdim=True).values,
    "the middle": lambda v: (v.amax(2, keepdim=True) + v.amin(2, keepdim=True)) / 2,
    "one number": lambda v: (v.max() + v.min()) / 2,
}


@pytest.fixture(autouse=True)
def _no_search(monkeypatch):
    monkeypatch.setattr(search, "of_output", nothing)  # the search takes longest


def _less(call, number, *, back=1.0, normalised=False, stored=False, weights=None):
    """Return an output of P in 16 bits and of V less a number, of which `back` is added again."""
    q, k, v = grouped(call, torch.float32)
    s = (q @ k.mT * call.scale).masked_fill(hidden_of(call), -torch.inf)
    p = torch.exp(s - s.amax(-1, keepdim=True))
    l = p.sum(-1, keepdim=True)
    p, l = (p / l, 1.0) if normalised else (p, l if weights is None else weights(l))
    taken = _NUMBERS[number](v)
    left = (v - taken).to(call.q.dtype).float() if stored else v - taken
    return (p.to(call.q.dtype).float() @ left / l + back * taken).to(call.q.dtype)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("how", [{"normalised": True}, {"stored": True}])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("number", _NUMBERS)
def test_a_number_that_is_taken_off_v_and_added_back_is_no_bug(number, dtype, how):
    for family in ("very peaky", "lognormal v"):
        call = inputs.call(family, _SHAPE, dtype, 2)
        found = runs.judged(call, _less(call, number, **how))
        assert found.answer in ("LESS EXACT", "ROUNDING"), found.summary()
        if found.answer == "LESS EXACT" and number == "the first row":
            assert "a number other than the mean" in found.why


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize(
    "how",
    [
        {"back": 0.98},
        {"back": 0.0},
        {"weights": lambda l: l.roll(1, 2)},
        {"weights": torch.ones_like},
    ],
    ids=["2 % lost", "not added back", "sum of another row", "sums left out"],
)
def test_a_number_excuses_no_bug_beside_it(how, dtype):
    for family in ("peaky", "normal", "v of mean 1"):
        call = inputs.call(family, _SHAPE, dtype, 4)
        found = runs.judged(call, _less(call, "the first row", **how))
        assert found.answer == "BUG", found.summary()


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_an_offset_that_v_lacks_is_a_bug(dtype):
    call = inputs.call("normal", _SHAPE, dtype, 5)
    for part in wrong.PARTS:
        out = wrong.run(wrong.valued(lambda w: w.v - 0.05), call, part)
        if not out.equal(wrong.run(right_output, call)):
            assert runs.judged(call, out).answer == "BUG"


@pytest.fixture
def seen():
    """The problem, policy, truth, error and sigma of an output of which V's first row was taken."""
    call = inputs.call("peaky", _SHAPE, "bf16", 3)
    keys = of_dense(*(x.float().numpy() for x in (call.k, call.v)), None)
    q, out = (
        x[0].transpose(0, 1).double().numpy()
        for x in (call.q, _less(call, "the first row", normalised=True))
    )
    ends = np.array([0, _SHAPE.queries])
    problem = Problem(q, *keys, scale=call.scale, cu_seqlens_q=ends, causal=True)
    policy = NumericPolicy(p="bf16", out="bf16")
    look = first_look.look(problem, policy, out)
    return problem, policy, look.truth, look.error, look.filtered()[0]


def test_the_number_is_found_from_the_errors(seen):
    _, twins = next(centres.fitted(*seen))
    taken = keys_of(seen[0], "v", 0, 0)[0]
    assert np.corrcoef(twins[0].centre[0, 0], taken)[0, 1] > 0.9


def test_errors_that_no_number_in_v_s_range_gives_are_not_explained(seen):
    problem, policy, truth, error, sigma = seen
    assert list(centres.fitted(problem, policy, truth, error, sigma))
    assert not list(centres.fitted(problem, policy, truth, 8 * error, sigma))
