from dataclasses import replace

import numpy as np
import pytest

from labkernels.numerics import metrics, rounding
from labkernels.numerics.emulation import softmax_trace, tensor_core
from labkernels.numerics.emulation.decode import emulate
from labkernels.numerics.error import truncation_bias
from tests.numerics.error.cases import N8, decode_problem, tensor_cores


def measured(problem, policy, order, arch="sm_90"):
    """Return the error of the tensor cores' sums alone, and the exact output."""
    exact, summed = (
        emulate(problem, policy, order, arch=arch, sources=sources)
        for sources in (["p"], ["p", "accumulation"])
    )
    return summed - exact, exact


def predicted(problem, policy, order, arch="sm_90"):
    """Return the mean of this error in each element of the output."""
    bias = np.zeros(problem.out_shape)
    for place, trace in softmax_trace.blocks(problem, order):
        place.put(bias, truncation_bias.accumulation(trace, policy, arch)[0])
    return bias


@pytest.mark.parametrize("fmt", ["fp16", "bf16"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_bias_of_values_of_one_sign_within_5_percent(fmt, arch):
    problem = decode_problem([1024, 1024], fmt=fmt, mean=1.0)
    policy = tensor_cores(fmt)
    error, _ = measured(problem, policy, N8, arch)
    bias = predicted(problem, policy, N8, arch)
    assert error.mean() < -5 * error.std() / np.sqrt(error.size)
    assert bias.mean() == pytest.approx(error.mean(), rel=0.05)


@pytest.mark.parametrize("fmt", ["bf16", "bf16x2", "fp16"])
def test_what_is_left_spreads_as_predicted(fmt):
    problem = decode_problem([1024] * 4, fmt=fmt.removesuffix("x2"))
    policy = tensor_cores(fmt)
    error, exact = measured(problem, policy, N8)
    z = []
    for place, trace in softmax_trace.blocks(problem, N8):
        bias, variance = truncation_bias.accumulation(trace, policy)
        whole = np.zeros(problem.out_shape)
        place.put(whole, error_over(bias, variance, place, error))
        z.append(whole)
    assert metrics.rms(sum(z), by="all") == pytest.approx(1, rel=0.1)
    assert np.corrcoef(error.ravel(), np.sign(exact).ravel())[0, 1] < -0.1


def error_over(bias, variance, place, error):
    rows = place.rows.of(error)[place.head, place.some]
    return (rows - bias) / np.sqrt(variance)


def test_sums_that_fp32_joins_are_nearly_unbiased():
    problem = decode_problem([2048], fmt="fp16", mean=1.0)
    policy = tensor_cores("fp16")
    chain = predicted(problem, policy, N8)
    promoted = predicted(problem, policy, replace(N8, promoted=True))
    assert abs(promoted.mean()) < 0.1 * abs(chain.mean())


def test_splits_shorten_the_chains():
    problem, policy = decode_problem([2048], mean=1.0), tensor_cores()
    whole, cut = (
        predicted(problem, policy, replace(N8, keys_per_split=keys)).mean() for keys in (2048, 512)
    )
    assert 3 < whole / cut < 8


def test_terms_that_all_bits_are_kept_of_lose_nothing_and_others_are_lost_whole():
    unit = tensor_core.unit_of("sm_90", "fp16")
    a, b, before = np.ones((1, 1, 16)), np.full((1, 16, 1), 2.0**-10), np.ones((1, 1, 1))
    lost, variance = truncation_bias.cut(a, b, before, before + a @ b, "fp16", unit)
    assert lost == variance == 0
    b = np.zeros((1, 16, 1))
    b[0, 3] = -(2.0**-14) * 2.0**-10
    before = np.full((1, 1, 1), 2.0**3)
    lost, variance = truncation_bias.cut(a, b, before, before + a @ b, "fp16", unit)
    found = tensor_core.matmul(a, b, before, arch="sm_90", fmt="fp16")
    assert found == before
    assert -lost == found - (before + a @ b)
    assert variance == 0


def test_parts_of_p_add_up_to_twice_the_digits_and_a_lowest_bit_divides():
    p = np.random.default_rng(0).random(1000)
    assert rounding.p_parts(p, "bf16")[0] == pytest.approx(p, rel=2.0**-8)
    assert sum(rounding.p_parts(p, "bf16x2")) == pytest.approx(p, rel=2.0**-16)
    x = np.array([0.0, 1.0, -1.5, 0.75, 2.0**20 + 2.0**-10])
    assert rounding.lowest_bit(x).tolist() == [np.inf, 1.0, 0.5, 0.25, 2.0**-10]
