from dataclasses import replace

import numpy as np
import pytest
import torch

from labkernels.kernels.prefill.fp8 import CODES, RaggedCodes, prefill_fp8
from labkernels.numerics import metrics, rounding
from labkernels.numerics.emulation import softmax_trace, tensor_core
from labkernels.numerics.emulation.decode import emulate
from labkernels.numerics.error import truncation_bias
from tests.kernels.contract import SPECS
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


@pytest.mark.parametrize("mean", [0.5, 2.0])
def test_sums_of_14_bits_in_the_kernels_bits(mean):
    """P in e4m3 times V with a mean, by the CPU build: in one chain, and joined after 128 keys."""
    generator, n = torch.Generator().manual_seed(0), 2048
    q, k, v = (torch.randn(rows, 1, 128, generator=generator) for rows in (64, n, n))
    q[..., 0], k[..., 0], k[-1] = 1, 0, 0
    k[-1, 0, 0] = 56  # the last tile is the first: no later key is greater, and rescales O
    q, k, v = (x.to(CODES) for x in (q, k, v + mean))
    ends = [torch.tensor([0, rows], dtype=torch.int32) for rows in (64, n)]
    s = (q[:, 0].double() @ k[:, 0].double().T).numpy() / 128**0.5
    p = np.exp(s - s[:, -1:])
    divisor = 256 * p.sum(1, keepdims=True)
    # in the order of the kernel's tiles of 128 keys, the last one first
    p = rounding.round_to(256 * p, "e4m3").reshape(64, -1, 128)[:, ::-1].reshape(64, n)
    values = v[:, 0].double().numpy().reshape(-1, 128, 128)[::-1].reshape(n, 128)
    for policy in SPECS["prefill_wgmma_fp8"].policies[3:5]:
        every = 128 if policy.accumulate == "promoted" else None
        out = prefill_fp8(q, RaggedCodes(k, v, ends[1]), ends[0], policy=policy, splits=1).out
        error = out[:, 0].double().numpy() - p @ values / divisor
        bias = truncation_bias.product(p, values, "e4m3", every=every)[0] / divisor
        assert bias.mean() == pytest.approx(error.mean(), rel=0.1)


@pytest.mark.parametrize("every", [32, 64, 128, None])
@pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])
def test_sums_of_14_bits_that_fp32_joins_after_any_number_of_keys(fmt, every):
    rng, n = np.random.default_rng(0), 2048
    v = rounding.round_to(rng.standard_normal((n, 64)) + 1, fmt)
    p = np.exp(rng.standard_normal((16, n)))
    p = rounding.round_to(256 * p / p.max(1, keepdims=True), fmt)
    parts = [slice(i, i + (every or n)) for i in range(0, n, every or n)]
    sums = (tensor_core.matmul(p[:, i], v[i], arch="sm_90", fmt=fmt) for i in parts)
    error = sum(x.astype(np.float64) for x in sums) - p @ v
    bias, _ = truncation_bias.product(p, v, fmt, every=every)
    assert bias.mean() == pytest.approx(error.mean(), rel=0.1)
