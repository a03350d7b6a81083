"""The error model predicts how sums in fp32 err, of products and of a score's chain."""

import numpy as np
import pytest

from labkernels.numerics import rounding
from labkernels.numerics.error import fp32_sums, sigma
from labkernels.numerics.truth.problem import Problem
from labkernels.policy import NumericPolicy
from labkernels.units import LN_2


def rounding_errors(total):
    return total.astype(np.float32) - total


@pytest.mark.parametrize("bits", [1, 2, 4, 20])
def test_one_rounding_has_the_variance_of_its_grain(bits):
    rng = np.random.default_rng(0)
    grain = 2.0 ** (-23 - bits)
    total = 1 + np.floor(rng.random(200_000) * 2**23) * 2.0**-23
    total = total + rng.integers(0, 2**bits, total.size) * grain
    predicted = fp32_sums.one_rounding(total, grain=grain)
    assert rounding_errors(total).var() == pytest.approx(predicted.mean(), rel=0.02)


def test_nothing_is_lost_of_what_fits_and_no_more_than_was_added():
    assert fp32_sums.one_rounding(np.array([1.5]), grain=2.0**-23) == 0
    assert fp32_sums.one_rounding(np.array([1.0]), added=np.array([0.0])) == 0
    assert fp32_sums.one_rounding(np.array([1.0]), added=np.array([1e-12])) == pytest.approx(1e-24)


@pytest.mark.parametrize("fmt", ["bf16", "fp16"])
def test_dot_products_spread_as_predicted(fmt):
    rng = np.random.default_rng(1)
    q, k = (rounding.round_to(x, fmt) for x in rng.standard_normal((2, 64, 128)))
    total = np.zeros((64, 64, 16), np.float32)
    for c in range(8):
        total = (total + q[:, None, c::8] * k[None, :, c::8]).astype(np.float32)
    while total.shape[-1] > 1:
        half = total.shape[-1] // 2
        total = total[..., :half] + total[..., half:]
    error = total[..., 0] - q @ k.T
    variance = fp32_sums.dot_products(q, k, 8)
    assert np.sqrt((error**2).sum() / variance.sum()) == pytest.approx(1, rel=0.1)


FINE = NumericPolicy(p="fp32", accumulate="fma", out="fp32")


def chain_errors(q, k):
    """Return the errors of scores [R, n] whose products are added one by one in fp32."""
    total = np.zeros((len(q), len(k)), np.float32)
    for d in range(q.shape[1]):
        total = rounding.fma_rn(q[:, d, None], k[None, :, d], total)
    return total - q @ k.T


@pytest.mark.parametrize("head_dim", [64, 576])
def test_the_chain_of_a_high_score_errs_as_predicted(head_dim):
    """The keys that count have high scores, and a chain that ends high was high before.

    A walk whose end is not given has 0.4 of this standard deviation here.
    """
    rng = np.random.default_rng(head_dim)
    rows, keys = 64, 200
    q, k = (rounding.round_to(rng.standard_normal((n, head_dim)), "fp16") for n in (rows, keys))
    pools = (x.reshape(1, keys, 1, -1) for x in (k, k[:, :1]))
    ends = np.array([0, rows])
    problem = Problem(q[:, None], *pools, np.zeros((1, 1), int), [keys], head_dim**-0.5, ends)
    (part,) = problem.row_blocks()
    (block,) = part.blocks()
    score = block.score_log2
    variance = sigma.exponent_variance(block, score, FINE)[0] / LN_2**2
    seen = chain_errors(q, k) * (problem.scale / LN_2)
    top = np.arange(rows), score[0].argmax(-1)
    ratio = np.sqrt((seen[top] ** 2).mean() / variance[top].mean())
    assert 0.7 < ratio < 1.15
