import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from labkernels.kernels.call import Attention
from labkernels.kernels.decode.inputs import decode_inputs
from labkernels.kernels.decode.workload import Decode
from labkernels.kernels.random_inputs import Normal
from labkernels.measure.judge import outputs
from labkernels.measure.judge.outputs import OutputJudge, every_row
from labkernels.numerics import arrays
from labkernels.numerics.truth import oracle
from labkernels.numerics.truth.problem import Problem
from labkernels.policy import CUDA_CORES, TENSOR_CORES
from labkernels.variant import AttentionVariant

RAGGED = Decode((0, 1, 33, 40), q_heads=4, kv_heads=2, head_dim=64, page_size=16, dtype="bf16")
EVEN = Decode.uniform(3, 40, q_heads=4, kv_heads=2, head_dim=64, dtype="fp16")


def random(workload, seed=3):
    return decode_inputs(workload, Normal(seed, "cpu"))


def judge_of(inputs):
    return OutputJudge(inputs, every_row(inputs))


def problem(inputs):
    cache = inputs.cache
    wide = (arrays.as_float64(tensor) for tensor in (inputs.q, cache.k, cache.v))
    return Problem(*wide, cache.page_table.numpy(), cache.kv_len.numpy(), inputs.scale)


def rounded(inputs):
    """Return the truth rounded once to the output's format, as a perfect kernel stores it."""
    truth, lse2 = oracle.attention(problem(inputs))
    return Attention(torch.from_numpy(truth).to(inputs.q.dtype), torch.from_numpy(lse2).float())


@pytest.mark.parametrize("workload", [RAGGED, EVEN], ids=["ragged", "even"])
def test_the_reference_is_the_numpy_oracle_of_the_pools(workload):
    inputs = random(workload)
    found = judge_of(inputs).reference
    truth, lse2 = oracle.attention(problem(inputs))
    assert not np.max(np.abs(found.o - truth)) > 1e-13
    np.testing.assert_allclose(found.lse2, lse2, rtol=0, atol=1e-12)


def spoil(out, request, head, change):
    spoiled = out.clone()
    spoiled[request, head, 5] += change
    return Attention(spoiled)


@pytest.mark.parametrize("check_all_keys", [10**6, 0], ids=["all", "sampled"])
@pytest.mark.parametrize("policy", [TENSOR_CORES, CUDA_CORES], ids=["on", "off"])
def test_a_perfect_output_passes_and_a_spoiled_one_does_not(monkeypatch, policy, check_all_keys):
    monkeypatch.setattr(outputs, "CHECK_ALL_KEYS", check_all_keys)
    inputs = random(EVEN)
    judge, right = judge_of(inputs), rounded(inputs)
    bound = outputs.bound_of(inputs.problem(range(3)), policy.of("fp16"))
    assert bound.o.shape == ((3, 4, 64) if check_all_keys else (1, 2, 64))
    assert bound.lse2.shape == bound.o.shape[:2]
    errors = judge(right, policy)
    assert errors.passed
    assert 0 < errors.rmse < errors.max_abs < 2e-3
    assert errors.lse2_max_abs < 1e-5
    for request, head in ((2, 0), (0, 3)):
        for change in (0.05, math.nan):
            assert not judge(spoil(right.out, request, head, change), policy).passed
    assert not judge(Attention(right.out, right.lse2 + 0.02), policy).passed
    assert judge(Attention(right.out), policy).lse2_max_abs is None


def test_a_lost_page_shows_in_a_head_even_where_the_bound_is_wide():
    inputs = random(EVEN)
    reference = judge_of(inputs).reference
    bound = outputs.bound_of(inputs.problem(), TENSOR_CORES.of("fp16"))
    wide = bound._replace(o=np.full_like(bound.o, 1.0))
    out, lse2 = rounded(inputs)
    out[0, 3] *= 1.01
    found = outputs.errors_of(out, lse2, reference, wide)
    assert found.bound_ratio < 1
    assert found.rmse_ratio > outputs.RMSE_RATIO_MAX
    assert not found.passed
    assert "worst head's RMSE" in found.reason


def test_inputs_are_random_scattered_and_repeatable():
    inputs, again, other = random(RAGGED), random(RAGGED), random(RAGGED, seed=4)
    assert torch.equal(inputs.cache.k, again.cache.k)
    assert not torch.equal(inputs.cache.k, other.cache.k)
    assert not torch.equal(inputs.cache.k, inputs.cache.v)
    inputs.cache.check_contents()
    used = [inputs.cache.page_table[b, :n] for b, n in enumerate([0, 1, 3, 3])]
    assert sorted(torch.cat(used).tolist()) == list(range(7))


def test_each_row_and_head_of_a_window_has_its_own_expected_rmse(monkeypatch):
    windowed = replace(EVEN, variant=AttentionVariant(window_left=3))
    given, told = random(windowed).problem(), TENSOR_CORES.of("fp16")
    expected = outputs.bound_of(given, told).rmse
    monkeypatch.setattr(outputs, "CHECK_ALL_KEYS", 1)
    found = outputs.bound_of(given, told)
    assert found.o.shape[:2] == (1, 2)  # bounds are of the last row and the first KV head alone
    assert np.array_equal(found.rmse, expected)
    assert expected.shape == (3, 4)
    assert expected.max() > 1.5 * expected.min()
