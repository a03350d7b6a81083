"""A part of a large problem has the rows of the whole, and settles what it can."""

import numpy as np
import pytest

from labkernels.numerics.truth import oracle
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.truth.variant import VariantTensors
from labkernels.numerics.verdict import less_exact, parts, twins, verdict
from labkernels.numerics.verdict.twins import Twin
from labkernels.policy import NumericPolicy

POLICY = NumericPolicy(p="bf16", out="bf16")


def problem_of(lens, q_lens, *, heads=(8, 4), head_dim=16, **how):
    rng = np.random.default_rng(0)
    shapes = (sum(q_lens), heads[0]), (sum(lens), heads[1]), (sum(lens), heads[1])
    q, k, v = (rng.standard_normal((*shape, head_dim)).astype(np.float32) for shape in shapes)
    ends = {"cu_seqlens_q": np.cumsum([0, *q_lens]), "scale": head_dim**-0.5}
    return Problem.packed(q, k, v, np.cumsum([0, *lens]), **ends, **how)


def a_variant(q_lens, lens):
    rng = np.random.default_rng(1)
    mask = rng.random((sum(q_lens), max(lens))) < 0.9
    return VariantTensors(window_left=300, alibi=rng.random(8), sinks=rng.random(8), mask=mask)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("varied", [False, True])
@pytest.mark.parametrize(
    ("lens", "q_lens"),
    [
        ([700, 512, 0, 900], [700, 300, 40, 1]),
        ([400, 900], [600, 200]),  # more queries than keys
        ([4096] * 9, [5] * 9),
    ],
)
def test_a_part_has_the_outputs_of_its_rows(lens, q_lens, causal, varied):
    variant = a_variant(q_lens, lens) if varied else None
    problem = problem_of(lens, q_lens, causal=causal, variant=variant)
    part = parts.of_problem(problem)
    whole, whole_lse2 = oracle.attention(problem)
    out, lse2 = oracle.attention(part.problem)
    np.testing.assert_allclose(out, part.of(whole), rtol=0, atol=1e-13)
    np.testing.assert_allclose(lse2, part.of(whole_lse2), rtol=0, atol=1e-12)
    assert 4 * out.size <= whole.size
    assert set(part.heads) == {0, 1, 6, 7}  # the query heads of the first KV head and of the last


def test_no_part_of_a_small_problem_or_of_one_without_keys():
    assert parts.of_problem(problem_of([100], [100], causal=True)) is None
    assert parts.of_problem(problem_of([0, 0], [2000, 3000])) is None
    assert parts.of_problem(problem_of([5000], [64], heads=(8, 1))) is None  # a part would be half


@pytest.fixture(scope="module")
def large():
    problem = problem_of([600, 900], [600, 900], causal=True)
    return problem, oracle.attention(problem)[0]


def test_a_less_exact_output_is_recognised_by_all_rows(large, unnamed):
    problem, _ = large
    told = NumericPolicy(p="fp32", out="bf16")
    (out,) = twins.outputs(problem, told, (Twin(256, partials="bf16"),))
    found = verdict.decide(problem, out, policy=told)
    assert found.answer == verdict.LESS_EXACT
    assert any(way.words in found.why for group in less_exact.ways(told) for way in group)


@pytest.mark.parametrize("twin", [Twin(64), Twin(64, partials="bf16")])
def test_a_twin_keeps_p_in_two_parts(twin):
    problem = problem_of([300], [4])
    (out,) = twins.outputs(problem, NumericPolicy(p="bf16x2", out="fp32"), (twin,))
    truth, _ = oracle.attention(problem)
    of_largest_value = 2.0**-9 if twin.partials else 2.0**-16  # half an ulp of bf16, of hi + lo
    assert np.abs(out - truth).max() < of_largest_value * np.abs(problem.v_pool).max()
