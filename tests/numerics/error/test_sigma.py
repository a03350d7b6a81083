"""The error model predicts the error of a score's chain in fp32, which matters if P is fp32."""

import numpy as np
import pytest

from labkernels.numerics import rounding
from labkernels.numerics.error import sigma
from labkernels.numerics.truth.problem import Problem
from labkernels.policy import NumericPolicy
from labkernels.units import LN_2

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
