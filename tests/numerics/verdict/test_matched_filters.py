"""An error along the direction of one matched filter does not show along another."""

from dataclasses import replace

import numpy as np
import pytest

from labkernels.numerics.error import bounds
from labkernels.numerics.error import sigma as error_sigma
from labkernels.numerics.truth import oracle
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.verdict import matched_filters
from labkernels.policy import NumericPolicy

POLICY = NumericPolicy(p="fp16", denominator=None, out="fp16")


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(s) for s in ((1, 4, 30, 64), (1, 2, 200, 64), (1, 2, 200, 64)))
    # outputs on both sides of 1, where fp16's spacing doubles
    return Problem.dense(q, k, v + 1, scale=0.125)


def betas(problem, error):
    found = matched_filters.matched_filters(
        problem, POLICY, error, error_sigma.sigma(problem, POLICY)
    )
    return dict(zip(matched_filters.DIRECTIONS, found.along / found.power, strict=True))


def test_a_common_mode_shows_no_scale(problem):
    o, _ = oracle.attention(problem)
    found = betas(problem, -1e-3 * o)
    np.testing.assert_allclose(found["common mode"], -1e-3, rtol=1e-9)
    assert np.abs(found["scale"]).max() < 1e-12


def test_a_wrong_scale_has_its_own_beta(problem):
    change = 1e-4
    wrong = replace(problem, scale=problem.scale * (1 + change))
    error = oracle.attention(wrong)[0] - oracle.attention(problem)[0]
    # to first order, and without the part along o
    np.testing.assert_allclose(betas(problem, error)["scale"], change, rtol=1e-2)


def test_a_key_left_out_is_found_with_beta_1(problem):
    wrong = replace(problem, kv_lens=problem.kv_lens - 1)
    error = oracle.attention(wrong)[0] - oracle.attention(problem)[0]
    sigma = error_sigma.sigma(problem, POLICY)
    found = matched_filters.matched_filters(problem, POLICY, error, sigma)
    assert (found.row.key == 199).all()
    np.testing.assert_allclose(found.row.beta, 1, rtol=1e-6)
    assert found.sample.key.tolist() == [199]
    np.testing.assert_allclose(found.sample.beta, 1, rtol=1e-6)


@pytest.mark.parametrize("denominator", [None, "rounded"])
@pytest.mark.parametrize(("mean", "times"), [(0, 1), (1000, 1), (0, 1e30), (0, 0)])
def test_estimates_in_fp32_are_those_of_float64(problem, denominator, mean, times, monkeypatch):
    problem = replace(problem, v_pool=problem.v_pool * times + mean)
    policy = replace(POLICY, denominator=denominator, out="bf16")
    random = np.random.default_rng(5).standard_normal(problem.out_shape)

    def estimates():
        sigma = error_sigma.sigma(problem, policy)
        bound, _ = bounds.both_bounds(problem, policy, narrow=policy.narrow)
        return sigma, bound, matched_filters.matched_filters(problem, policy, sigma * random, sigma)

    sigma, bound, narrow = estimates()
    monkeypatch.setattr(NumericPolicy, "narrow", False)
    wide_sigma, wide_bound, wide = estimates()
    assert (narrow.variance != wide.variance).any() or times == 0
    np.testing.assert_allclose(sigma, wide_sigma, rtol=1e-5)
    np.testing.assert_allclose(narrow.variance, wide.variance, rtol=1e-4)
    np.testing.assert_allclose(narrow.coherence, wide.coherence, rtol=1e-4)
    np.testing.assert_allclose(narrow.sharing, wide.sharing, rtol=1e-5)
    np.testing.assert_allclose(narrow.power, wide.power, rtol=1e-4)
    noise = 1e-4 * np.sqrt(wide.power)  # a sum of random errors may be small by itself
    assert (np.abs(narrow.along - wide.along) <= noise).all()
    np.testing.assert_allclose(narrow.row.z, wide.row.z, rtol=1e-2)
    np.testing.assert_allclose(narrow.row.beta, wide.row.beta, rtol=1e-2)
    assert (bound >= wide_bound).all()
    np.testing.assert_allclose(bound, wide_bound, rtol=1e-3)
