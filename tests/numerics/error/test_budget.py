from dataclasses import replace

import numpy as np
import pytest

from labkernels.numerics import metrics
from labkernels.numerics.emulation.decode import SOURCES, emulate, errors_alone
from labkernels.numerics.error.budget import error_budget
from labkernels.numerics.truth import oracle
from tests.numerics.error.cases import FMA, N8, cuda_cores, decode_problem, tensor_cores

WAYS = {
    "tensor cores": (tensor_cores(), N8),
    "bf16 output": (tensor_cores(out="bf16"), N8),
    "rounded denominator": (tensor_cores(denominator="rounded"), N8),
    "hi + lo": (tensor_cores("bf16x2"), N8),
    "promoted": (tensor_cores("bf16x2"), replace(N8, promoted=True)),
    "splits": (tensor_cores("bf16x2"), replace(N8, keys_per_split=64)),
    "poly3": (tensor_cores(exp2="poly3"), N8),
    "cuda cores": (cuda_cores(), FMA),
    "cuda cores, splits": (cuda_cores(), replace(FMA, keys_per_split=64)),
    "cuda cores, poly3": (cuda_cores(exp2="poly3"), FMA),
}


@pytest.fixture(scope="module")
def problem():
    """Return a problem of so many rows that a head's spread is known to a few percent."""
    return decode_problem([500] * 24)


@pytest.fixture(scope="module")
def few():
    return decode_problem([500] * 6)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("way", WAYS)
def test_z_has_standard_deviation_one(problem, way):
    policy, order = WAYS[way]
    budget = error_budget(problem, policy, order)
    z = budget.z(emulate(problem, policy, order))
    assert metrics.rms(z, by="all") == pytest.approx(1, rel=0.08)
    assert metrics.rms(z, by="head") == pytest.approx(np.ones(4), rel=0.15)


def test_the_output_is_that_of_the_oracle(few):
    o, _ = oracle.attention(few)
    assert error_budget(few, cuda_cores(), FMA).o == pytest.approx(o, abs=1e-13)
    none = emulate(few, cuda_cores(), FMA, sources=())
    assert none == pytest.approx(o, abs=1e-13)


def test_variances_of_sources_alone_add_up(few):
    policy, order = WAYS["bf16 output"]
    budget = error_budget(few, policy, order)
    alone = errors_alone(few, policy, order)
    whole = emulate(few, policy, order) - budget.o
    assert np.sum((alone - budget.biases) ** 2) == pytest.approx(
        np.sum((whole - budget.bias) ** 2), rel=0.05
    )


def test_the_error_of_poly3_is_known_not_random(few):
    policy = cuda_cores(exp2="poly3")
    error = errors_alone(few, policy, FMA)[SOURCES.index("exp2")]
    budget = error_budget(few, policy, FMA)
    bias = budget.biases[SOURCES.index("exp2")]
    assert np.corrcoef(error.ravel(), bias.ravel())[0, 1] > 0.999


def test_a_table_has_shares_that_sum_to_one(few):
    budget = error_budget(few, tensor_cores(out="bf16"), N8)
    for by, groups in (
        ("all", ()),
        ("head", (4,)),
        ("sample", (6,)),
        ("sample_and_head", (6, 4)),
    ):
        table = budget.table(by=by)
        assert table.shape == (*groups, len(SOURCES))
        assert table["share"].sum(-1) == pytest.approx(np.ones(groups))
    table = {row["source"]: row for row in budget.table(by="all")}
    assert table["p"]["share"] + table["store"]["share"] > 0.999
    assert table["p"]["variance"] == pytest.approx(
        budget.variances[SOURCES.index("p")].mean(), rel=1e-12
    )


def test_rows_without_keys_and_of_one_key():
    problem = decode_problem([0, 1, 20])
    budget = error_budget(problem, tensor_cores(), N8)
    assert not budget.sigma[0].any()
    assert not budget.z(np.zeros(problem.out_shape))[0].any()
    out = emulate(problem, tensor_cores(), N8)
    assert (out[1] == budget.o[1]).all()
    assert np.isfinite(budget.sigma).all()
