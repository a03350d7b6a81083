"""The bound and the expected error hold for a kernel that is emulated in float32."""

from dataclasses import replace

import numpy as np
import pytest

from labkernels.numerics import metrics, rounding
from labkernels.numerics.emulation.decode import emulate
from labkernels.numerics.error import bounds
from labkernels.numerics.error import sigma as error_sigma
from labkernels.numerics.error.execution import Execution
from labkernels.numerics.truth import oracle
from labkernels.numerics.truth.problem import Problem
from labkernels.policy import NumericPolicy
from tests.numerics.error.cases import FMA, N8

WARPS, STEP = 4, 16


BF16 = NumericPolicy(p="bf16", exp2="poly5", out="bf16")
WHOLE = Execution(splits=1)


def way(**changes) -> tuple[NumericPolicy, Execution]:
    """Return BF16 and WHOLE, with some fields of either changed."""
    of_execution = {"arch", "splits", "chains"} & changes.keys()
    execution = replace(WHOLE, **{name: changes.pop(name) for name in of_execution})
    return replace(BF16, **changes), execution


def computed(problem: Problem, policy: NumericPolicy, execution: Execution):
    """Return the output of a kernel in float32 that splits the keys as the execution says.

    The emulation divides by zero in rows without keys, where a kernel stores zeros.
    """
    steps = -(-int(problem.n_keys.max()) // STEP)
    keys = STEP * max(1, -(-steps // execution.splits))
    order = replace(N8 if policy.tensor_cores else FMA, keys_per_split=keys)
    with np.errstate(invalid="ignore"):
        out = emulate(problem, policy, order, arch=execution.arch)
    out[problem.n_keys == 0] = 0
    return out


def problem_of(kv_lens, *, fmt, family="normal", heads=(8, 2), dim=32, page_size=16, seed=18):
    """Return paged inputs of one family, with NaN in every slot that no request owns."""
    rng = np.random.default_rng(seed)
    counts = [-(-n // page_size) for n in kv_lens]
    table = np.zeros((len(kv_lens), max(1, *counts)), np.int32)
    order = iter(rng.permutation(sum(counts) + 2))
    k, v = (np.full((sum(counts) + 2, page_size, heads[1], dim), np.nan) for _ in range(2))
    q = rng.standard_normal((len(kv_lens), heads[0], dim))
    q *= {"peaky": 8.0, "hostile": 300.0}.get(family, 1.0)
    for b, n in enumerate(kv_lens):
        for page in range(counts[b]):
            number = table[b, page] = next(order)
            owned = min(page_size, n - page * page_size)
            k[number, :owned] = rng.standard_normal((owned, heads[1], dim))
            v[number, :owned] = rng.standard_normal((owned, heads[1], dim))
    if family == "mean 1":
        v += 1
    elif family == "outliers":
        v = np.where(rng.random(v.shape) < 0.01, 100 * v, 1e-3 * v)
    q, k, v = (rounding.round_to(x.astype(np.float32), fmt) for x in (q, k, v))
    return Problem(q, k, v, table, np.array(kv_lens, np.int32), dim**-0.5)


WAYS = [
    (way(), "bf16"),
    (way(p="fp16", out="fp16", exp2="mufu", splits=3), "fp16"),
    (way(p="fp16", out="fp32", arch="sm_80", denominator="rounded"), "fp16"),
    (way(out="fp32", denominator="rounded", exp2="mufu"), "bf16"),
    (way(p="bf16x2", out="fp32", splits=2), "bf16"),
    (way(p="fp16x2", out="fp32", denominator="rounded"), "fp16"),
    (way(out="fp32", exp2="poly3", splits=2), "bf16"),
    (way(p="fp32", out="fp32", accumulate="fma", exp2="mufu"), "fp16"),
    (way(p="fp32", out="bf16", accumulate="fma", exp2="poly3"), "bf16"),
]
IDS = [
    f"{fmt}-P_{policy.p}-out_{policy.out}-{policy.exp2}-{execution.arch}-{policy.accumulate}"
    for (policy, execution), fmt in WAYS
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("family", ["normal", "peaky", "hostile", "mean 1", "outliers"])
@pytest.mark.parametrize(("how", "fmt"), WAYS, ids=IDS)
def test_a_right_kernel_stays_below_the_bound(how, fmt, family):
    case = problem_of([0, 1, 15, 16, 17, 150], fmt=fmt, family=family)
    bound = require_below(case, how)
    assert not bound[0].any()
    if family in ("normal", "mean 1"):
        # a bound that nothing can exceed would prove nothing
        assert (bound[5] < 0.06 * (1 + np.nanmax(np.abs(case.v_pool)))).all()


def require_below(problem, how):
    """Require that the emulated kernel's errors are within their bounds, and return these."""
    error = np.abs(computed(problem, *how) - oracle.attention(problem)[0])
    bound = bounds.out_bound(problem, *how)
    assert (error <= bound).all(), (error / bound).max()
    return bound


@pytest.mark.parametrize("family", ["normal", "mean 1"])
@pytest.mark.parametrize(("how", "fmt"), WAYS, ids=IDS)
def test_a_right_causal_kernel_keeps_every_rows_own_bound(how, fmt, family):
    """Rows see no key, one key or more; a row's chains are as long as its own keys."""
    base = problem_of([0, 3, 40], fmt=fmt, family=family)
    rng = np.random.default_rng(4)
    q = rounding.round_to(rng.standard_normal((2 + 5 + 33, 8, 32)), fmt)
    case = replace(base, q=q, cu_seqlens_q=[0, 2, 7, 40], causal=True)
    assert sorted(set(case.n_keys.tolist())) == [0, 1, 2, 3, *range(8, 41)]
    require_below(case, how)


def test_the_bound_of_a_narrow_policy_is_tight_enough_to_see_a_dropped_key():
    case = problem_of([200], fmt="fp16", family="mean 1")
    how = way(p="fp16", out="fp16", exp2="mufu")
    out = computed(replace(case, kv_lens=case.kv_lens - 1), *how)
    o, _ = oracle.attention(case)
    assert (np.abs(out - o) > bounds.out_bound(case, *how)).any()


def test_bound_grows_with_every_coarser_choice():
    case = problem_of([100], fmt="bf16")
    base = {"out": "fp32", "exp2": "mufu"}
    reference = bounds.out_bound(case, *way(**base))
    finer = ({"p": "bf16x2"}, {"p": "fp16"})
    coarser = (
        {"splits": 50}, {"exp2": "poly3"}, {"out": "fp16"}, {"out": "bf16"},
        {"denominator": "rounded"}, {"denominator": None}, {"arch": "sm_80"},
    )  # fmt: skip
    for change in finer:
        assert (bounds.out_bound(case, *way(**base | change)) < reference).all(), change
    for change in coarser:
        assert (bounds.out_bound(case, *way(**base | change)) > reference).all(), change


def test_inputs_that_are_not_finite_have_no_bound():
    case = problem_of([5, 5], fmt="bf16")
    case.k_pool[case.page_table[0, 0], 2] = np.nan
    case.v_pool[case.page_table[1, 0], 2, 0, 3] = np.nan
    bound = bounds.out_bound(case, BF16, WHOLE)
    assert np.isnan(bound[0]).all()
    assert np.isnan(bound[1, :4, 3]).all()
    assert np.isfinite(bound[1, 4:]).all()
    assert np.isnan(bounds.both_bounds(case, BF16, WHOLE)[1][0]).all()


SIGMA = [
    way(p="fp16", out="fp16", exp2="mufu"),
    way(exp2="mufu", splits=2),
    way(out="fp32"),
    way(out="fp32", denominator="rounded"),
    way(p="fp32", out="fp16", accumulate="fma"),
    way(p="fp32", out="fp32", accumulate="fma", exp2="poly3"),
    way(p="fp32", out="fp32", accumulate="fma", chains=WARPS),
]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("family", ["normal", "mean 1"])
@pytest.mark.parametrize("how", SIGMA, ids=lambda how: f"P_{how[0].p}-out_{how[0].out}")
def test_expected_error_is_the_error_seen(how, family):
    policy = how[0]
    fmt = "fp16" if "fp16" in (policy.p, policy.out) else "bf16"
    case = problem_of([400] * 3, fmt=fmt, family=family, dim=64)
    sigma = error_sigma.sigma(case, *how)
    out = computed(case, *how)
    o, _ = oracle.attention(case)
    ratio = metrics.rms(out - o, by="head") / metrics.rms(sigma, by="head")
    # sigma counts l as one chain, but lanes add parts of it: half the variance if all is in fp32.
    # Products of bf16 have 16 bits, so that the first sums of a score's chain lose nothing.
    lowest = 0.5 if policy.p == policy.out == "fp32" else 0.85
    assert lowest < ratio.mean() < 1.15


def test_one_chain_is_more_than_many_add_up_to_and_the_sums_grow_with_the_keys():
    """A known order of sums makes sigma smaller; an unknown order counts as the worst one."""
    case = problem_of([64, 1024], fmt="bf16", family="mean 1")
    fine = {"p": "fp32", "out": "fp32", "accumulate": "fma"}
    one, many = (error_sigma.sigma(case, *way(**fine, chains=n)) for n in (1, 8))
    assert (one > many).all()
    growth = metrics.rms(one[1], by="all") / metrics.rms(one[0], by="all")
    assert 3 < growth < 5  # sqrt(1024 / 64), o being 1 in both


@pytest.mark.parametrize("p_format", ["fp16", "bf16", "fp16x2", "bf16x2"])
@pytest.mark.parametrize("binade", [-4, -7, -13])  # P has fp32's bits, more than the parts
def test_spacing_of_p_is_what_its_rounding_leaves(p_format, binade):
    """The rms of 40000 numbers strays by less than 1 %, but the low parts are not quite uniform."""
    p = np.float32(2.0**binade * np.random.default_rng(1).uniform(1, 2, 40000))
    left = p - sum(rounding.p_parts(p, p_format))
    found = np.sqrt(np.mean(np.float64(left) ** 2))
    expected = np.sqrt(np.mean(error_sigma.p_spacing(np.float64(p), p_format) ** 2) / 12)
    assert found == pytest.approx(expected, rel=0.05)


def test_hi_and_lo_cut_the_expected_error_of_p_and_empty_rows_have_none():
    case = problem_of([0, 300], fmt="bf16", dim=64)
    hi, hi_lo = (way(p=p, out="fp32") for p in ("bf16", "bf16x2"))
    one, two = error_sigma.sigma(case, *hi), error_sigma.sigma(case, *hi_lo)
    assert not one[0].any()
    assert (one[1] > 50 * two[1]).all()
    out = computed(case, *hi_lo)
    o, _ = oracle.attention(case)
    ratio = metrics.rms((out - o)[1:], by="all") / metrics.rms(two[1:], by="all")
    assert 0.6 < ratio < 1.3


def test_of_two_possible_denominators_the_larger_sigma_counts():
    case = problem_of([200], fmt="bf16", family="mean 1")
    either, *kinds = (
        error_sigma.sigma(case, replace(BF16, out="fp32", denominator=denominator))
        for denominator in (None, "unrounded", "rounded")
    )
    np.testing.assert_array_equal(either, np.maximum(*kinds))


def test_unknown_ways_to_round_are_refused():
    for change, message in (
        ({"p": "fp8"}, "p = 'fp8', allowed: .*fp32, fp16, bf16, fp16x2, bf16x2"),
        ({"exp2": "exact"}, "exp2 = 'exact', allowed: mufu, poly3, poly5"),
        ({"denominator": "none"}, "denominator = 'none', allowed: unrounded, rounded"),
        ({"out": "int8"}, "out = 'int8', allowed: input, fp64"),
        ({"arch": "sm_70"}, "arch = 'sm_70', allowed: sm_80"),
        ({"splits": 0}, "splits = 0, allowed: an integer >= 1"),
    ):
        with pytest.raises(ValueError, match=message):
            way(**change)
