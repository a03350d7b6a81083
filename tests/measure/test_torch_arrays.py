"""numerics computes the same float64 sums on torch tensors as on NumPy arrays."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from labkernels.numerics import rounding
from labkernels.numerics.arrays import moved, namespace, to_numpy
from labkernels.numerics.error import bounds
from labkernels.numerics.error import sigma as error_sigma
from labkernels.numerics.truth import oracle
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.verdict import groupings, matched_filters
from labkernels.policy import P_FORMATS, NumericPolicy

Q_LENS, KV_LENS = (3, 0, 1, 17), (5, 9, 0, 12)


def both(*, causal):
    """Return a ragged problem whose keys are packed, in NumPy and in torch."""
    rng = np.random.default_rng(2)
    shapes = ((sum(Q_LENS), 6, 8), (sum(KV_LENS), 2, 8), (sum(KV_LENS), 2, 5))
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    ends = np.cumsum([0, *KV_LENS])
    how = {"cu_seqlens_q": np.cumsum([0, *Q_LENS]), "causal": causal, "scale": 0.4}
    tensors = [torch.from_numpy(x) for x in arrays]
    return Problem.packed(*arrays, ends, **how), Problem.packed(*tensors, ends, **how)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("p_format", P_FORMATS)
def test_every_sum_is_the_same(p_format, causal):
    in_numpy, in_torch = both(causal=causal)
    policy = NumericPolicy(p=p_format, denominator=None, out="fp32")
    for function in (
        oracle.attention,
        lambda p: bounds.both_bounds(p, policy),
        lambda p: (error_sigma.sigma(p, policy),),
    ):
        for a, b in zip(function(in_numpy), function(in_torch), strict=True):
            assert isinstance(b, torch.Tensor)
            assert b.dtype == torch.float64
            np.testing.assert_allclose(to_numpy(b), a, rtol=1e-9, atol=1e-15)
    for a, b in zip(groupings.tiles(in_numpy), groupings.tiles(in_torch), strict=True):
        np.testing.assert_array_equal(a.labels, b.labels)


@pytest.mark.parametrize("p_format", ["bf16", "fp32"])
def test_the_filters_are_the_same(p_format):
    in_numpy, in_torch = both(causal=True)
    policy = NumericPolicy(p=p_format, denominator=None, out="fp32")
    error = np.random.default_rng(3).standard_normal(in_numpy.out_shape)
    error[0, 0, 0] = np.nan
    sigma = np.full(error.shape, 0.5)
    a, b = (matched_filters.matched_filters(p, policy, error, sigma) for p in (in_numpy, in_torch))
    for name in ("along", "power", "variance", "sharing", "coherence"):
        found, expected = getattr(b, name), getattr(a, name)
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-12)
        assert np.isfinite(found).all()
    for keys in ("row", "sample"):
        found, expected = (getattr(x, keys) for x in (b, a))
        np.testing.assert_allclose(np.abs(found.z), np.abs(expected.z), rtol=1e-7)
        # In a row of two keys, both are equally far from their mean, so either may be found.
        same = found.key == expected.key
        assert same.mean() > 0.9
        for part in ("z", "beta"):
            there = (getattr(x, part)[same] for x in (found, expected))
            np.testing.assert_allclose(*there, rtol=1e-7)


def test_what_is_not_finite_is_so_in_both():
    for p in both(causal=True):
        v_pool = namespace(p.q).asarray(to_numpy(p.v_pool).copy())
        v_pool[2, 0, 0, 0] = float("inf")  # the third key of the first request
        o = to_numpy(oracle.attention(replace(p, v_pool=v_pool))[0])
        assert np.isinf(o[:3, :3, 0]).all()
        assert np.isfinite(o[:3, :3, 1:]).all()
        assert np.isfinite(o[3:]).all()


def test_arrays_keep_their_values_and_their_place():
    half = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    assert to_numpy(half).tolist() == [1.5, -2.0]
    assert to_numpy(half).dtype == np.float32
    assert to_numpy(torch.tensor([2**40])).tolist() == [2**40]
    fixed = np.arange(3.0)
    fixed.setflags(write=False)
    there = moved(fixed, half)
    assert there.tolist() == [0.0, 1.0, 2.0]
    x = np.array([0.0, 1e-320, 3.0, -70000.0, 1e300])
    for fmt in ("fp16", "bf16", "fp32", "fp64"):
        spacing = rounding.quantum(torch.from_numpy(x), fmt)
        np.testing.assert_array_equal(to_numpy(spacing), rounding.quantum(x, fmt))
