"""A large prefill: what a verdict costs in units of float64 attention, and what a sample leaves."""

import time

import numpy as np
import pytest

from labkernels.numerics import rounding
from labkernels.numerics.error import bounds
from labkernels.numerics.truth import oracle
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.verdict import first_look, matched_filters, verdict
from labkernels.policy import NumericPolicy

POLICY = NumericPolicy(p="fp16", out="fp16")
# A right prefill of 2048 tokens took 2.6 to 3.0 times the CPU of float64 attention on two free
# cores, and 5.9 to 6.6 with all filters on all rows. Other programs slow both.
MOST = 5.0


def problem_of(lens, heads=(8, 2), head_dim=64):
    rng = np.random.default_rng(0)
    q, k, v = (
        rng.standard_normal((sum(lens), n, head_dim)).astype(np.float16).astype(np.float32)
        for n in (heads[0], heads[1], heads[1])
    )
    ends = np.cumsum([0, *lens])
    how = {"cu_seqlens_q": ends, "scale": head_dim**-0.5, "causal": True}
    return Problem.packed(q, k, v, ends, **how)


@pytest.fixture(scope="module")
def large():
    problem = problem_of([2048], head_dim=128)
    return problem, oracle.attention(problem)[0]


def a_right_output(truth):
    """Return an output with errors of a few roundings, which is not the truth rounded once."""
    noise = np.random.default_rng(1).standard_normal(truth.shape)
    return rounding.round_to(truth * (1 + 2.0**-13 * noise), "fp16")


def test_a_right_prefill_takes_a_few_times_the_cpu_of_float64_attention(large):
    out, started = a_right_output(large[1]), time.process_time()
    oracle.attention(problem_of([2048], head_dim=128))
    of_truth = time.process_time() - started
    found = verdict.decide(problem_of([2048], head_dim=128), out, policy=POLICY)
    spent = time.process_time() - started - of_truth
    assert found.answer == verdict.ROUNDING, found.summary()
    assert spent < MOST * of_truth


@pytest.fixture
def small(monkeypatch):
    """Return a problem twice: all of its rows are filtered, and a sample of them."""
    whole = problem_of([1100, 500])
    seen = first_look.look(whole, POLICY, np.zeros(whole.out_shape))
    filtered = seen.filtered()
    monkeypatch.setattr(matched_filters, "_SAMPLED", 0)
    sampled = problem_of([1100, 500])
    return seen, filtered, first_look.look(sampled, POLICY, np.zeros(whole.out_shape)), sampled


def test_a_sample_has_the_figures_of_the_rows_that_it_takes(small):
    _, (sigma, whole), seen, problem = small
    own, sample = seen.filtered()
    np.testing.assert_allclose(own, sigma, rtol=1e-4)
    stand_ins = matched_filters.stand_ins(problem)
    for rows, other in stand_ins.items():
        assert (rows.request, rows.kv_first) == (other.request, other.kv_first)
        (tokens, heads), n = rows.place, rows.last - rows.first
        taken = slice(other.first, other.first + n)
        coherence = sample.coherence[tokens, heads]
        np.testing.assert_array_equal(coherence, sample.coherence[taken, heads])
        if rows is other:
            np.testing.assert_allclose(coherence, whole.coherence[tokens, heads])
            np.testing.assert_allclose(sample.row.z[tokens, heads], whole.row.z[tokens, heads])
        else:
            assert not sample.power[:, tokens, heads].any()
    assert len({*stand_ins.values()}) < len(stand_ins) / 3


def test_a_coarse_bound_is_a_little_larger(small):
    whole, _, sampled, problem = small
    exact = bounds.both_bounds(problem, POLICY)[0]
    assert (sampled.bound >= exact).all()
    assert (sampled.bound <= 1.15 * exact).all()
    np.testing.assert_allclose(whole.bound, exact, rtol=1e-3)


def test_a_mistake_in_rows_beyond_the_sample_is_a_bug(large, unnamed):
    problem, truth = large
    stand_ins = matched_filters.stand_ins(problem)
    rows = next(rows for rows, other in stand_ins.items() if rows is not other)
    out = a_right_output(truth)
    out[rows.place] = rounding.round_to(truth[rows.place] * 1.004, "fp16")
    assert verdict.decide(problem, out, policy=POLICY).answer == verdict.BUG
