"""What 8 bits do to the output is predicted: from spacings before, from the errors after."""

from dataclasses import replace

import numpy as np
import pytest

from labkernels.formats import named
from labkernels.measure import real_inputs
from labkernels.numerics import metrics
from labkernels.numerics.error.quantization import Stored, first_order, mean_squares, rotated
from labkernels.numerics.truth import oracle
from labkernels.numerics.truth.variant import VariantTensors
from tests.numerics.error.cases import decode_problem

POOLS = {"q": "q", "k": "k_pool", "v": "v_pool"}
DISTRIBUTIONS = ("normal", "outlier channels", "lognormal", "mean-shifted")
WITHIN = 0.10  # of the RMSE of a head and of a sample, as mean_squares says


def problem_of(distribution, seed, *, samples=14, heads=14, keys=320):
    """Return a decode in bf16 with as many KV heads, so that rows share no error.

    Queries are halved: where a hundred keys share a row's weight, the RMSE of a head is no chance.
    """
    mean = 1.0 if distribution == "mean-shifted" else 0.0
    problem = decode_problem((keys,) * samples, heads=heads, kv_heads=heads, mean=mean, seed=seed)
    rng, size = np.random.default_rng([seed, 1]), np.ones(problem.k_pool.shape[-1])
    problem = replace(problem, q=problem.q / 2)
    if distribution == "outlier channels":
        size[rng.choice(len(size), 2, replace=False)] = 16.0
        return replace(problem, q=problem.q / 8, k_pool=problem.k_pool * size)
    if distribution == "lognormal":
        return replace(problem, v_pool=problem.v_pool * rng.lognormal(size=problem.v_pool.shape))
    return problem


def stored_in(problem, fmt, operands):
    """Return operands stored with scales by which each head's largest number is the format's."""
    found = {}
    for name in operands:
        x = np.abs(getattr(problem, POOLS[name]))
        most = x.max((0, -1)) if name == "q" else x.max((0, 1, -1))
        found[name] = Stored(fmt, most / named(fmt).max)
    return found


def error_of(problem, stored):
    held = {POOLS[n]: how.rounded(getattr(problem, POOLS[n])) for n, how in stored.items()}
    return oracle.attention(replace(problem, **held))[0] - oracle.attention(problem)[0]


def measured_over_predicted(problem, stored, by):
    predicted = np.sqrt(sum(mean_squares(problem, stored).values()))
    return metrics.rms(error_of(problem, stored), by=by) / metrics.rms(predicted, by=by)


def measured_over_first_order(problem, stored, by):
    told = sum(first_order(problem, stored).values())
    return metrics.rms(error_of(problem, stored), by=by) / metrics.rms(told, by=by)


@pytest.mark.parametrize("seed", range(6))
def test_the_error_of_each_head_and_sample(seed):
    fmt = ("e4m3", "e5m2")[(seed + seed // 3) % 2]
    problem = problem_of(DISTRIBUTIONS[seed % 3], seed)
    stored = stored_in(problem, fmt, "kv")
    for by in ("head", "sample"):
        ratio = measured_over_predicted(problem, stored, by)
        assert (np.abs(ratio - 1) <= WITHIN).all()


@pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_the_errors_made_tell_more_than_their_spacings(distribution, fmt):
    problem = problem_of(distribution, 7, samples=6, heads=6)
    stored = stored_in(problem, fmt, "qkv")
    for by in ("head", "sample"):
        ratio = measured_over_first_order(problem, stored, by)
        assert (np.abs(ratio - 1) <= WITHIN / 2).all()


@pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])
@pytest.mark.parametrize("times", [2, 5, 50])
def test_errors_of_tokens_that_repeat_add_up(times, fmt):
    problem = problem_of("normal", 3, samples=6, heads=6)
    pools = {name: getattr(problem, name).copy() for name in ("k_pool", "v_pool")}
    for pool in pools.values():  # pages lie in order: 320 keys of each sample
        keys = pool.reshape(6, 320, *pool.shape[2:])
        keys[:] = keys[:, np.arange(320) // times]
    problem = replace(problem, **pools)
    for stored in (stored_in(problem, fmt, "kv"), dict.fromkeys("kv", Stored(fmt))):
        assert (measured_over_predicted(problem, stored, "head") > 0.75 * times**0.5).all()
        for by in ("head", "sample"):
            ratio = measured_over_first_order(problem, stored, by)
            assert (np.abs(ratio - 1) <= WITHIN / 2).all()


@pytest.mark.parametrize(("fmt", "within"), [("e4m3", WITHIN), ("e5m2", 0.15)])
@pytest.mark.parametrize("name", real_inputs.HEADS)
def test_each_query_head_and_query_of_a_trained_model(name, fmt, within):
    """Over 16 scales, since a few errors decide; a query has the output of three heads."""
    problem = real_inputs.prefill_of((256,), (name,)).problem().in_numpy()
    squares = []
    for scale in 2.0 ** (np.arange(16) / 16):
        stored = dict.fromkeys("kv", Stored(fmt, scale))
        told = sum(first_order(problem, stored).values())
        squares.append((error_of(problem, stored) ** 2, told**2))
    measured, told = np.mean(squares, axis=0)
    for axes, most in (((0, 2), within), ((0, 1, 2), within / 2)):
        assert (np.abs(np.sqrt(measured.mean(axes) / told.mean(axes)) - 1) <= most).all()


PROMPTS = [(name, n) for name, head in real_inputs.HEADS.items() for n in head.lengths]


@pytest.mark.parametrize(("fmt", "within"), [("e4m3", WITHIN), ("e5m2", 0.15)])
@pytest.mark.parametrize(("name", "tokens"), PROMPTS)
def test_each_prompt_of_a_trained_model_with_scales_per_head(name, tokens, fmt, within):
    problem = real_inputs.prefill_of((tokens,), (name,)).problem().in_numpy()
    ratio = measured_over_first_order(problem, stored_in(problem, fmt, "kv"), "all")
    assert abs(ratio - 1) <= within


@pytest.mark.parametrize("variant", [None, VariantTensors(soft_cap=1.0, window_left=127)])
@pytest.mark.parametrize("operands", ["q", "k", "v", "qkv"])
def test_each_source(operands, variant):
    problem = replace(problem_of("normal", 5, samples=8, heads=8), variant=variant)
    stored = stored_in(problem, "e4m3", operands)
    assert abs(measured_over_predicted(problem, stored, "all") - 1) <= WITHIN
    assert abs(measured_over_first_order(problem, stored, "all") - 1) <= WITHIN / 5


def test_numbers_beyond_the_range_are_clipped_and_small_ones_are_lost():
    x = np.array([[500.0, -448.0, 0.0, 1.0, 2.0**-11]])
    squares = [52.0**2, 32.0**2 / 12, 0.0, 0.125**2 / 12, 2.0**-22]
    assert Stored("e4m3").variance(x).tolist() == [squares]
    assert np.array_equal(Stored("e4m3", 2.0).variance(2 * x), 4 * Stored("e4m3").variance(x))


@pytest.mark.parametrize(("q_size", "least", "most"), [(1.0, 0.7, 1.4), (16.0, 4.0, 10.0)])
def test_a_rotation_gains_where_q_is_large_in_the_channel_of_k(q_size, least, most):
    """A float's error is relative: a large channel of K alone costs what a mixed one does."""
    problem, size = problem_of("normal", 8, samples=8, heads=8), np.ones(64)
    size[5] = 16.0
    q, k = problem.q * np.where(size > 1, q_size, 1) / 64, problem.k_pool * size
    turned = rotated(q, k)
    pair = [replace(problem, q=a, k_pool=b) for a, b in ((q, k), turned)]
    assert np.allclose(*(oracle.attention(of)[0] for of in pair), rtol=0, atol=1e-12)
    found = []
    for of in pair:
        stored = stored_in(of, "e4m3", "k")
        assert abs(measured_over_predicted(of, stored, "all") - 1) <= WITHIN
        found.append(np.sqrt(mean_squares(of, stored)["k"].mean()))
    assert least <= found[0] / found[1] <= most
