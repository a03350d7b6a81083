import numpy as np
import pytest

from labkernels.numerics import rounding
from labkernels.numerics.truth import oracle
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.verdict import criteria
from labkernels.numerics.verdict.criteria import RULES, Sample


def problem(fmt="bf16", *, kv_lens=(40, 17), **how):
    rng = np.random.default_rng(0)
    q, k, v = (
        rounding.round_to(rng.normal(size=shape), fmt)
        for shape in ((2, 4, 32), (6, 16, 2, 32), (6, 16, 2, 32))
    )
    table = np.array([[3, 0, 5], [1, 4, 2]])
    return Problem(q, k, v, table, np.array(kv_lens), 32**-0.5, **how)


def sample(fmt="bf16"):
    asked = problem(fmt)
    truth, _ = oracle.attention(asked)
    eager = criteria.eager_attention(asked, fmt)
    return Sample(rounding.round_to(truth, fmt), truth, eager, fmt)


def changed(right, out):
    return Sample(out, right.truth, right.eager, right.out_format)


@pytest.mark.parametrize("fmt", ["fp16", "bf16"])
def test_eager_errs_by_a_few_units_of_its_format(fmt):
    right = sample(fmt)
    error = np.abs(right.eager - right.truth)
    unit = {"fp16": 2.0**-11, "bf16": 2.0**-8}[fmt]
    assert rounding.is_representable(right.eager, fmt).all()
    assert unit / 10 < error.max() < 20 * unit
    assert not np.array_equal(right.eager, right.reference)


def test_eager_keeps_the_mask():
    one = problem(kv_lens=(40,) * 2)
    two = Problem(
        one.q,
        one.k_pool,
        one.v_pool,
        one.page_table[:1],
        one.kv_lens[:1],
        one.scale,
        cu_seqlens_q=np.array([0, 2]),
        causal=True,
    )
    out = criteria.eager_attention(two, "fp16")
    assert np.abs(out - oracle.attention(two)[0]).max() < 0.01
    assert np.array_equal(out[1], criteria.eager_attention(_last_token(two), "fp16")[0])


def _last_token(p):
    return Problem(p.q[1:], p.k_pool, p.v_pool, p.page_table, p.kv_lens, p.scale)


@pytest.mark.parametrize("name", RULES)
def test_each_rule_accepts_the_rounded_truth_and_refuses_nonsense(name):
    rule, right = RULES[name], sample("fp16")
    assert rule.accepts(right)
    assert not rule.accepts(changed(right, right.out + 1.0))
    assert not rule.accepts(changed(right, -right.out))
    with_nan = right.out.copy()
    with_nan[0, 0, 0] = np.nan
    assert not rule.accepts(changed(right, with_nan))


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("FA 2x", lambda s: 2 * np.abs(s.eager - s.reference).max()),
        ("PyTorch fudge", lambda s: 5 * np.abs(s.eager - s.truth).max()),
        ("close 1e-3", lambda s: 1e-3),
        ("close 1e-2", lambda s: 1e-2),
    ],
)
def test_a_rule_ends_where_it_says(name, allowed):
    right = sample("fp16")
    base = right.truth if name == "PyTorch fudge" else right.reference
    place = np.unravel_index(np.abs(base).argmin(), base.shape)
    for factor, accepted in ((0.99, True), (1.02, False)):
        out = base.copy()
        out[place] += factor * allowed(right)
        assert RULES[name].accepts(changed(right, out)) == accepted


def test_the_third_rule_of_fa_allows_what_adding_and_taking_away_costs():
    right = sample("bf16")
    reference = right.reference
    noise = np.abs(
        rounding.round_to(
            rounding.round_to(reference + np.float32(0.3), "bf16") - np.float32(0.3), "bf16"
        )
        - reference
    ).max()
    out = reference.copy()
    out[0, 0, 0] += 2 * np.abs(right.eager - reference).max() + 1.9 * noise
    assert not RULES["FA 2x"].accepts(changed(right, out))
    assert RULES["FA3 2x"].accepts(changed(right, out))


def test_cosine_sees_a_common_factor_of_half_a_percent_and_no_less_than_a_third():
    right = sample("fp16")
    assert not RULES["cosine"].accepts(changed(right, right.truth * 1.005))
    assert RULES["cosine"].accepts(changed(right, right.truth * 1.003))
