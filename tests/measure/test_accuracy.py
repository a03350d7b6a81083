import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from labkernels.measure import accuracy, cases  # noqa: E402
from labkernels.numerics import bounds, oracle  # noqa: E402
from labkernels.numerics.problem import Problem  # noqa: E402
from labkernels.numerics.rounds import Rounds  # noqa: E402
from labkernels.workload import Decode  # noqa: E402

RAGGED = Decode((0, 1, 33, 40), q_heads=4, kv_heads=2, head_dim=64, page_size=16, dtype="bf16")
EVEN = Decode.uniform(3, 40, q_heads=4, kv_heads=2, head_dim=64, dtype="fp16")


def problem(case):
    cache = case.cache
    wide = (accuracy.as_float64(tensor) for tensor in (case.q, cache.k, cache.v))
    return Problem(*wide, cache.page_table.numpy(), cache.kv_len.numpy(), case.scale)


def rounded(case):
    """The truth, rounded once to the output's format: what a perfect kernel stores."""
    truth, lse2 = oracle.attention(problem(case))
    return torch.from_numpy(truth).to(case.q.dtype), torch.from_numpy(lse2).float()


@pytest.mark.parametrize("workload", [RAGGED, EVEN], ids=["ragged", "even"])
def test_the_torch_reference_equals_the_numpy_oracle(workload):
    case = cases.decode_case(workload, seed=3, device="cpu")
    found = accuracy.decode_reference(case.q, case.cache, scale=case.scale)
    truth, lse2 = oracle.attention(problem(case))
    assert not np.max(np.abs(found.o - truth)) > 1e-13
    np.testing.assert_allclose(found.lse2, lse2, rtol=0, atol=1e-12)


def spoil(out, request, head, change):
    spoiled = out.clone()
    spoiled[request, head, 5] += change
    return spoiled


@pytest.mark.parametrize("check_all_keys", [10**6, 0], ids=["all", "sampled"])
@pytest.mark.parametrize("tensor_cores", [True, False], ids=["on", "off"])
def test_a_perfect_output_passes_and_a_spoiled_one_does_not(
    monkeypatch, tensor_cores, check_all_keys
):
    monkeypatch.setattr(accuracy, "CHECK_ALL_KEYS", check_all_keys)
    case = cases.decode_case(EVEN, seed=3, device="cpu")
    reference = accuracy.decode_reference(case.q, case.cache, scale=case.scale)
    chain = accuracy.Chain(tensor_cores, "unrounded")
    bound = accuracy.decode_bound(case.q, case.cache, chain, scale=case.scale, dtype="fp16")
    assert bound.o.shape == ((3, 4, 64) if check_all_keys else (1, 2, 64))
    assert bound.lse2.shape == bound.o.shape[:2]
    out, lse2 = rounded(case)
    errors = accuracy.judge(out, lse2, reference, bound)
    assert errors.passed
    assert 0 < errors.rmse < errors.max_abs < 2e-3
    assert errors.lse2_max_abs < 1e-5
    for request, head in ((2, 0), (0, 3)):
        for change in (0.05, math.nan):
            spoiled = spoil(out, request, head, change)
            assert not accuracy.judge(spoiled, None, reference, bound).passed
    assert not accuracy.judge(out, lse2 + 0.02, reference, bound).passed
    assert accuracy.judge(out, None, reference, bound).lse2_max_abs is None


def test_a_lost_page_shows_in_a_head_even_where_the_bound_is_wide():
    case = cases.decode_case(EVEN, seed=3, device="cpu")
    reference = accuracy.decode_reference(case.q, case.cache, scale=case.scale)
    chain = accuracy.Chain(True, "unrounded")
    bound = accuracy.decode_bound(case.q, case.cache, chain, scale=case.scale, dtype="fp16")
    wide = accuracy.Bound(np.full_like(bound.o, 1.0), bound.lse2, bound.rmse)
    out, lse2 = rounded(case)
    out[0, 3] *= 1.01
    found = accuracy.judge(out, lse2, reference, wide)
    assert found.bound_ratio < 1
    assert found.rmse_ratio > accuracy.RMSE_RATIO_MAX
    assert not found.passed


def test_a_ragged_batch_is_bounded_as_numerics_bounds_it():
    case = cases.decode_case(RAGGED, seed=3, device="cpu")
    chain = accuracy.Chain(True, "rounded")
    found = accuracy.decode_bound(case.q, case.cache, chain, scale=case.scale, dtype="bf16")
    expected = bounds.out_bound(problem(case), Rounds("bf16", "bf16", "rounded"))
    np.testing.assert_array_equal(found.o, expected)
    out, lse2 = rounded(case)
    reference = accuracy.decode_reference(case.q, case.cache, scale=case.scale)
    assert accuracy.judge(out, lse2, reference, found).passed


def test_a_case_is_random_scattered_and_repeatable():
    case = cases.decode_case(RAGGED, seed=3, device="cpu")
    again = cases.decode_case(RAGGED, seed=3, device="cpu")
    other = cases.decode_case(RAGGED, seed=4, device="cpu")
    assert torch.equal(case.cache.k, again.cache.k)
    assert not torch.equal(case.cache.k, other.cache.k)
    assert not torch.equal(case.cache.k, case.cache.v)
    assert case.cache.kv_len.tolist() == [0, 1, 33, 40]
    case.cache.check_contents()
    used = [case.cache.page_table[b, :n] for b, n in enumerate([0, 1, 3, 3])]
    assert sorted(torch.cat(used).tolist()) == list(range(7))
    assert case.scale == 0.125


def test_a_case_of_another_dtype_is_refused():
    with pytest.raises(ValueError, match="dtype = 'fp32', allowed: fp16, bf16"):
        cases.decode_case(Decode.uniform(1, 1, q_heads=1, kv_heads=1, dtype="fp32"), seed=0)
