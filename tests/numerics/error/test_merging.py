"""The error of a merge over ranks is what the model predicts, and grows as it says."""

import functools

import numpy as np
import pytest

from labkernels.kernels.decode.inputs import problem_of
from labkernels.numerics.error import merging
from labkernels.numerics.truth.oracle import attention
from labkernels.policy import TENSOR_CORES
from tests.distributed.judged import by_hops, decode_of


@functools.cache
def found(ranks, carry, hops):
    """Return the rms error of a merged bf16 output, and the rms of the expected error."""
    q, caches, done = decode_of(ranks, "fp32" if carry == "fp32" else "input")
    parts = [problem_of(q, cache, scale=0.125).in_numpy() for cache in caches]
    truths = [attention(part) for part in parts]
    outs, lse2s = (np.stack([x[i] for x in truths]) for i in range(2))
    out = by_hops(done.outs, done.lse2s) if hops else done.out
    error = out.double().numpy() - merging.merged(outs, merging.shares(lse2s))
    expected = merging.sigma_of_parts(parts, TENSOR_CORES.of("bf16"), carry, hops=hops)
    return [float(np.sqrt((x**2).mean())) for x in (error, expected)]


@pytest.mark.parametrize("ranks", [2, 16, 64])
@pytest.mark.parametrize(("carry", "hops"), [("fp32", False), ("bf16", False), ("bf16", True)])
def test_errors_are_as_large_as_predicted(ranks, carry, hops):
    error, expected = found(ranks, carry, hops)
    assert 0.85 < error / expected < 1.15  # 512 numbers: a spread of 3 %, and the model's own error


def test_only_a_carry_that_is_rounded_at_every_hop_grows_with_the_ranks():
    grown = {
        (carry, hops): [found(ranks, carry, hops)[0] for ranks in (2, 64)]
        for carry, hops in (("fp32", False), ("bf16", False), ("bf16", True))
    }
    once, every = grown["bf16", False], grown["bf16", True]
    assert max(grown["fp32", False][1], once[1]) < 1.2 * max(once)
    assert every[1] > 2.5 * every[0]


@pytest.mark.parametrize("carry", ["fp32", "input"])
def test_no_merge_exceeds_its_bound(carry):
    done = decode_of(16, carry)[2]
    outs, lse2s = done.outs.double().numpy(), done.lse2s.double().numpy()
    weights = merging.shares(lse2s)
    right, bound = merging.merged(outs, weights), merging.merged_bound(outs, weights, "bf16")
    assert (np.abs(done.out.double().numpy() - right) <= bound).all()
