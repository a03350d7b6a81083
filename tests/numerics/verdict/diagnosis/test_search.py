"""The search for a name: what ends it early, and what bounds its work on long contexts."""

import numpy as np
import pytest

from labkernels.measure.strangers import inputs, runs, wrong
from labkernels.numerics.truth import oracle
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.verdict.diagnosis import names
from labkernels.numerics.verdict.diagnosis.whole_kernel import sheets

RAGGED = (inputs.Shape(2, 6, 3, 21, 53, 40, causal=True), inputs.Shape(3, 8, 2, 1, 171, 48))


@pytest.fixture
def no_readings(monkeypatch):
    """Fail where the readings of the grammar, or the fits of the structure, are tried."""

    def tried(*_, **__):
        raise AssertionError("hundreds of readings are tried for a mistake of one number")

    monkeypatch.setattr(names.whole_kernel.grammar, "Screen", tried)
    monkeypatch.setattr(names.structure, "explain", tried)


@pytest.mark.parametrize("shape", RAGGED, ids=["causal", "decode"])
def test_a_factor_of_every_output_ends_the_search(shape, no_readings):
    call = inputs.call("normal", shape, "bf16", 11)
    factor = wrong.stored(lambda _, out: (out.double() * 1.01).to(out.dtype))
    found = runs.judged(call, wrong.run(factor, call))
    either = "V or the output by a factor, or the denominator by a factor"
    assert found.matches[0].name == either, found.summary()
    assert "times 1.0" in found.matches[0].where


@pytest.mark.parametrize("shape", RAGGED, ids=["causal", "decode"])
def test_the_value_of_any_key_that_is_added_ends_the_search(shape, no_readings):
    call = inputs.call("normal", shape, "bf16", 12)
    added = wrong.stored(lambda w, out: (out.double() + 0.03 * w.v[:, :, 7:8]).to(w.call.q.dtype))
    best = runs.judged(call, wrong.run(added, call)).matches[0]
    assert best.name == "the value of key 7 is added"
    assert float(best.where.split(";")[0].removeprefix("times ")) == pytest.approx(0.03, rel=0.02)


def test_one_key_in_place_of_the_output_does_not_hide_the_scale_that_leaves_it():
    call = inputs.call("peaky", inputs.Shape(2, 4, 4, 24, 24, 40, causal=True), "bf16", 3)
    sharp = wrong.scored(lambda w: 40**0.5 * w.s)
    found = runs.judged(call, wrong.run(sharp, call))
    assert "scale" in found.matches[0].name, found.summary()


def test_runs_of_more_keys_than_the_coarse_ends_are_found_to_the_key():
    call = inputs.call("normal", inputs.Shape(1, 2, 1, 1, 701, 32), "fp16", 5)
    lost = wrong.scored(lambda w: wrong.masked(w.s, _between(w, 301, 417)))
    best = runs.judged(call, wrong.run(lost, call)).matches[0]
    assert best.name.startswith("keys left out")
    assert "keys 301 to 416" in best.where


def test_a_run_of_keys_ends_with_the_last_key():
    call = inputs.call("normal", inputs.Shape(1, 2, 1, 1, 700, 32), "bf16", 5)
    without = wrong.valued(lambda w: w.v * (wrong.keys_of(w) < 688)[:, None])
    best = runs.judged(call, wrong.run(without, call)).matches[0]
    assert best.name == "V read as 0, or the output of a split lost"
    assert "keys 688 to 699" in best.where


def _between(w, first, last):
    key = wrong.places(w)[1]
    return (key >= first) & (key < last)


def _problem(rng, causal=True):
    """Two requests of 1,030 and 1,100 keys, of which one asks for its last 600 tokens alone."""
    q = rng.standard_normal((1700, 1, 8))
    k, v = (rng.standard_normal((2130, 1, 8)) for _ in range(2))
    ends = {"cu_seqlens_q": np.array([0, 600, 1700]), "causal": causal}
    return Problem.packed(q, k, v, [0, 1030, 2130], scale=8**-0.5, **ends)


def test_the_start_of_long_requests_is_a_problem_of_its_own():
    problem = _problem(np.random.default_rng(0))
    truth, _ = oracle.attention(problem)
    bad = np.ones(truth.shape[:2])
    given = problem, truth, truth, np.ones(truth.shape), bad, "fp32"
    start = sheets.of_start(*given)
    assert {sheet.kv_len for sheet in start} == {512}
    for sheet in start:
        np.testing.assert_allclose(sheet.attend(sheet.scores), sheet.truth, rtol=1e-12)


@pytest.mark.parametrize("reason", ["right at first", "not causal"])
def test_no_start_where_the_errors_come_later_or_all_keys_are_seen(reason):
    problem = _problem(np.random.default_rng(1), causal=reason != "not causal")
    bad = np.ones(problem.out_shape[:2])
    if reason == "right at first":
        bad[600:1400] = 0.0
        bad[:300] = 0.0
    truth = np.zeros(problem.out_shape)
    assert sheets.of_start(problem, truth, truth, truth + 1, bad, "fp32") == []


def test_a_candidate_for_each_head_does_not_end_the_search_and_one_number_does():
    explain = names.whole_kernel
    one, each = (
        explain.Mistake("", "", lambda _: None, vague=True, settles=up_to, for_each=not up_to)
        for up_to in (1.15, 0.0)
    )
    assert explain._settles(1.0, one, 16.0)
    assert not explain._settles(1.0, one, 4.0)
    assert not explain._settles(1.2, one, 1e6)
    assert not explain._settles(1.0, each, 16.0)
