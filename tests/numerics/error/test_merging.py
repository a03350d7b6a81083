"""The error of a merge over ranks is what the model predicts, and grows as it says."""

import functools

import numpy as np
import pytest

from labkernels.chapters import across_a_wire as chapter
from labkernels.chapters import live
from labkernels.kernels.decode.inputs import problem_of
from labkernels.numerics.error import merging
from labkernels.policy import TENSOR_CORES
from tests.distributed.cases import parts_of


@functools.cache
def errors(ranks, carry):
    """Return the rms error of a merged bf16 output, and the rms of the expected error."""
    inputs, shards, _ = parts_of(ranks)
    parts = [problem_of(inputs.q, x, scale=inputs.scale).in_numpy() for x in shards]
    how, hops = chapter.CARRIES[carry]
    wire = how.replace("input", "bf16")
    error = chapter.in_parts(inputs, ranks, carry).double().numpy() - live.truth(inputs)
    expected = merging.sigma_of_parts(parts, TENSOR_CORES.of("bf16"), wire, hops=hops)
    return [float(np.sqrt((x**2).mean())) for x in (error, expected)]


@pytest.mark.parametrize("ranks", [2, 64])
@pytest.mark.parametrize("carry", chapter.CARRIES)
def test_errors_are_as_large_as_predicted(ranks, carry):
    error, expected = errors(ranks, carry)
    assert 0.85 < error / expected < 1.15  # 512 numbers: a spread of 3 %, and the model's own error


def test_only_a_carry_that_is_rounded_at_every_hop_grows_with_the_ranks():
    grown = {carry: errors(64, carry)[0] / errors(2, carry)[0] for carry in chapter.CARRIES}
    assert max(grown["fp32"], grown["bf16 once"]) < 1.2
    assert grown["bf16 hops"] > 2.5


@pytest.mark.parametrize("carry", ["fp32", "input"])
def test_no_merge_exceeds_its_bound(carry):
    done = parts_of(16, carry)[2]
    outs, weights = done.outs.double().numpy(), merging.shares(done.lse2s.double().numpy())
    off = np.abs(done.out.double().numpy() - merging.merged(outs, weights))
    assert (off <= merging.merged_bound(outs, weights, "bf16")).all()
