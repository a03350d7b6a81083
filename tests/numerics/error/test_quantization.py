"""What storing Q, K and V in 8 bits does to the output is predicted from the numbers stored."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from labkernels.formats import named
from labkernels.numerics import metrics
from labkernels.numerics.error.quantization import Stored, mean_squares, rotated
from labkernels.numerics.truth import oracle
from labkernels.numerics.truth.variant import VariantTensors
from tests.numerics.error.cases import decode_problem

POOLS = {"q": "q", "k": "k_pool", "v": "v_pool"}
WITHIN = 0.10  # what the issue of an 8-bit cache asks of the RMSE of a head and of a sample


def problem_of(distribution, seed, *, samples=16, heads=16, keys=320):
    """Return a decode in bf16 with as many KV heads, so that rows share no error.

    Queries are halved: where a hundred keys share a row's weight, the RMSE of a head is no chance.
    """
    mean = 1.0 if distribution == "mean-shifted" else 0.0
    problem = decode_problem((keys,) * samples, heads=heads, kv_heads=heads, mean=mean, seed=seed)
    rng, size = np.random.default_rng([seed, 1]), np.ones(problem.k_pool.shape[-1])
    problem = replace(problem, q=problem.q / 2)
    if distribution == "outlier channels":
        size[rng.choice(len(size), 2, replace=False)] = 16.0
        return replace(problem, q=problem.q / 4, k_pool=problem.k_pool * size)
    if distribution == "lognormal":
        return replace(problem, v_pool=problem.v_pool * rng.lognormal(size=problem.v_pool.shape))
    return problem


def scales_of(problem, fmt):
    """Return the scale of each head with which its largest number is the format's."""
    found = {}
    for name, pool in POOLS.items():
        x = np.abs(getattr(problem, pool))
        most = x.max((0, -1)) if name == "q" else x.max((0, 1, -1))
        found[name] = most / named(fmt).max
    return found


def quantized(problem, stored):
    """Return the problem with operands as a cache holds them."""
    held = {POOLS[n]: how.rounded(getattr(problem, POOLS[n])) for n, how in stored.items()}
    return replace(problem, **held)


def measured_over_predicted(problem, stored, by):
    error = oracle.attention(quantized(problem, stored))[0] - oracle.attention(problem)[0]
    predicted = np.sqrt(sum(mean_squares(problem, stored).values()))
    return metrics.rms(error, by=by) / metrics.rms(predicted, by=by)


def stored_in(problem, fmt, operands):
    scales = scales_of(problem, fmt)
    return {name: Stored(fmt, scales[name]) for name in operands}


@pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])
@pytest.mark.parametrize(
    ("distribution", "seed"),
    [("normal", 0), ("normal", 1), ("mean-shifted", 2), ("outlier channels", 3), ("lognormal", 4)],
)
def test_the_error_of_each_head_and_sample(distribution, seed, fmt):
    problem = problem_of(distribution, seed)
    stored = stored_in(problem, fmt, "kv")
    for by in ("head", "sample"):
        ratio = measured_over_predicted(problem, stored, by)
        print(by, np.abs(ratio - 1).max())
        assert (np.abs(ratio - 1) <= WITHIN).all()


@pytest.mark.parametrize("operands", ["q", "k", "v", "qkv"])
def test_each_source(operands):
    problem = problem_of("normal", 5)
    ratio = measured_over_predicted(problem, stored_in(problem, "e4m3", operands), "all")
    assert abs(ratio - 1) <= WITHIN


def test_a_variant_and_a_mask_count():
    problem = problem_of("normal", 6)
    variant = VariantTensors(soft_cap=1.0, window_left=127)
    problem = replace(problem, q=problem.q * 2, variant=variant)
    for operands in ("q", "k", "v"):
        ratio = measured_over_predicted(problem, stored_in(problem, "e4m3", operands), "all")
        assert abs(ratio - 1) <= WITHIN


def test_numbers_beyond_the_range_are_clipped():
    x = np.array([[500.0, -448.0, 0.0, 1.0]])
    assert Stored("e4m3").variance(x).tolist() == [[52.0**2, 32.0**2 / 12, 0.0, 0.125**2 / 12]]
    assert np.array_equal(Stored("e4m3", 2.0).variance(2 * x), 4 * Stored("e4m3").variance(x))


def test_scales_of_pages_and_of_slots_are_those_of_heads_where_they_are_equal():
    problem = problem_of("normal", 7, samples=2, heads=2, keys=40)
    of_heads = {name: Stored("e4m3", scale) for name, scale in scales_of(problem, "e4m3").items()}
    of_heads.pop("q")
    pages, size = problem.k_pool.shape[:2]
    for shape in ((pages, 1, 2), (pages, size, 2)):
        wide = {n: replace(x, scale=np.broadcast_to(x.scale, shape)) for n, x in of_heads.items()}
        found = mean_squares(problem, wide)
        assert all(np.array_equal(x, found[n]) for n, x in mean_squares(problem, of_heads).items())


@pytest.mark.parametrize(("q_size", "least", "most"), [(1.0, 0.9, 1.15), (16.0, 3.0, 8.0)])
def test_a_rotation_gains_where_q_is_large_in_the_channels_of_k(q_size, least, most):
    """A float's error is relative: a large channel alone of K costs what a mixed one does."""
    problem = problem_of("normal", 8)
    size = np.ones(64)
    size[5] = 16.0
    k = problem.k_pool * size
    problem = replace(problem, k_pool=k, q=problem.q * np.where(size > 1, q_size, 1) / 32)
    turned = replace(problem, **dict(zip(("q", "k_pool"), rotated(problem.q, k), strict=True)))
    assert np.allclose(
        oracle.attention(turned)[0], oracle.attention(problem)[0], rtol=0, atol=1e-12
    )
    gains = []
    for of in (problem, turned):
        stored = stored_in(of, "e4m3", "k")
        assert abs(measured_over_predicted(of, stored, "all") - 1) <= WITHIN
        gains.append(np.sqrt(mean_squares(of, stored)["k"].mean()))
    assert least <= gains[0] / gains[1] <= most


def test_a_rotation_of_torch_is_that_of_numpy():
    x = np.random.default_rng(0).standard_normal((3, 2, 32))
    (there,) = rotated(torch.from_numpy(x), seed=3)
    assert np.allclose(there.numpy(), rotated(x, seed=3)[0], rtol=0, atol=1e-14)
    assert not np.allclose(rotated(x, seed=4)[0], rotated(x, seed=3)[0], rtol=0, atol=0.1)
    assert rotated(torch.from_numpy(x).bfloat16())[0].dtype == torch.bfloat16
    with pytest.raises(ValueError, match="channels = 12, allowed: a power of two"):
        rotated(np.zeros((2, 12)))


def test_what_is_refused():
    problem = problem_of("normal", 0, samples=1, heads=1, keys=16)
    with pytest.raises(ValueError, match="operand = 'p', allowed: q, k, v"):
        mean_squares(problem, {"p": Stored("e4m3")})
