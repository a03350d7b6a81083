"""One look at each block of rows finds what whole passes find, and keeps nothing of a large one."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from labkernels.numerics import rounding
from labkernels.numerics.error import bounds
from labkernels.numerics.truth import oracle
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.verdict import first_look
from labkernels.policy import NumericPolicy

POLICY = NumericPolicy(p="bf16", denominator=None, out="bf16")


@pytest.fixture
def problem():
    """Two causal requests in several blocks of rows; the first queries of one see no key."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, 4, 16)).astype(np.float32) for n in (700, 1300, 1300))
    ends = np.array([0, 300, 700])
    return Problem.packed(q, k, v, [0, 200, 1300], cu_seqlens_q=ends, scale=0.25, causal=True)


@pytest.fixture
def once(problem):
    return rounding.round_to(oracle.attention(problem)[0], "bf16")


def right(problem, once):
    """Return an output whose last token alone is not the float64 answer, rounded once."""
    out = once.copy()
    out[-1] += rounding.quantum(out[-1], "bf16")
    return out


def test_a_look_finds_what_whole_passes_find(problem, once):
    out = right(problem, once)
    seen = first_look.look(problem, POLICY, out)
    again = replace(problem)
    truth, lse2 = oracle.attention(again)
    of_out, of_lse2 = bounds.both_bounds(again, POLICY, narrow=True)
    sigma, filters = first_look.expected(again, POLICY).over_rows(out - truth)
    pairs = [(seen.truth, truth), (seen.lse2, lse2), (seen.error, out - truth)]
    pairs += [(seen.bound, of_out), (seen.lse2_bound, of_lse2)]
    found, all_filters = seen.filtered()
    pairs += [(found, sigma)] + [
        (getattr(all_filters, name), getattr(filters, name))
        for name in ("along", "power", "variance", "sharing", "coherence", "repeats", "alike")
    ]
    assert not seen.once
    assert len(problem.row_blocks()) > 8
    for a, b in pairs:
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-12)


def test_a_row_that_sees_no_key_must_be_zero(problem, once):
    empty = replace(problem, kv_lens=np.array([0, 1100]))
    assert {rows.request for rows in empty.row_blocks()} == {1}
    once[empty.n_keys == 0] = 0.0
    assert first_look.look(empty, POLICY, once).once
    once[5, 1, 2] = 1.0
    seen = first_look.look(empty, POLICY, once)
    assert not seen.once
    assert seen.error[5, 1, 2] == 1.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_tensors_on_the_cpu_give_the_bits_of_numpy(problem, dtype):
    q, k, v = (torch.from_numpy(x).to(dtype) for x in (problem.q, problem.k_pool, problem.v_pool))
    in_torch = replace(problem, q=q, k_pool=k, v_pool=v)
    judged = in_torch.on_cpu_in_numpy()
    assert isinstance(judged.k_pool, np.ndarray) == (dtype == torch.float32)
    for a, b in zip(oracle.attention(judged), oracle.attention(in_torch.in_numpy()), strict=True):
        assert isinstance(a, np.ndarray)
        np.testing.assert_array_equal(a, b)
    whole = judged.in_numpy()
    assert all(isinstance(x, np.ndarray) for x in (whole.q, whole.k_pool, whole.v_pool))
    assert judged.on_cpu_in_numpy() is judged
