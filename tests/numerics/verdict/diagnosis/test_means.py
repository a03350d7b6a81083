"""Readings of operands less a mean, or averaged over heads, give what such a kernel would give."""

import numpy as np
import pytest

from labkernels.numerics.truth import oracle
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.verdict.diagnosis.whole_kernel import sheets
from labkernels.numerics.verdict.diagnosis.whole_kernel.grammar import queries, readings
from labkernels.numerics.verdict.diagnosis.whole_kernel.grammar.terms import joined

TOKENS, KEYS, HEADS, DIM = 5, 9, 4, 8
RNG = np.random.default_rng(7)
Q = RNG.standard_normal((2 * TOKENS, HEADS, DIM))
K, V = (RNG.standard_normal((2 * KEYS, 2, DIM)) for _ in range(2))


def _problem(q, k, v) -> Problem:
    ends = {"cu_seqlens_q": [0, TOKENS, 2 * TOKENS], "causal": True}
    return Problem.packed(q, k, v, [0, KEYS, 2 * KEYS], scale=0.5, **ends)


def _less_mean(axis):
    each = Q.reshape(2, TOKENS, HEADS, DIM)
    return (each - each.mean(axis, keepdims=True)).reshape(Q.shape)


def _averaged(x):
    return np.broadcast_to(x.mean(1, keepdims=True), x.shape)


CHANGES = {
    ("Q less its mean", "that over the queries of its head"): (_less_mean(1), K, V),
    ("Q less its mean", "that over the heads of its token"): (_less_mean(2), K, V),
    ("Q less its mean", "that over the channels"): (_less_mean(3), K, V),
    ("K is the mean of all KV heads'", ""): (Q, _averaged(K), V),
    ("V is the mean of all KV heads'", ""): (Q, K, _averaged(V)),
    ("K and V is the mean of all KV heads'", ""): (Q, _averaged(K), _averaged(V)),
}


def _elements_on(x, step):
    """Read rows that hold both heads of a token, of all requests, some elements further."""
    return np.roll(x.ravel(), -step).reshape(x.shape)


def _around(x, step):
    return np.roll(x.reshape(len(x), -1), -step, 1).reshape(x.shape)


ROWS = "in rows of all heads"
CHANGES |= {
    ("K read with an address +4 elements off", f"{ROWS}, around"): (Q, _around(K, 4), V),
    ("V read with an address -2 elements off", ROWS): (Q, K, _elements_on(V, -2)),
}


@pytest.mark.parametrize(("name", "where"), CHANGES, ids=lambda text: text or "all")
def test_a_reading_gives_the_rows_of_a_kernel_with_this_mistake(name, where):
    problem, wrong = _problem(Q, K, V), _problem(*CHANGES[name, where])
    (truth, _), (out, _) = oracle.attention(problem), oracle.attention(wrong)
    bad, sigma = np.ones(truth.shape[:2]), np.ones(truth.shape)
    for sheet in sheets.of_rows(problem, out, truth, sigma, bad, "fp32"):
        tried = (*queries.of_queries(sheet), *readings.of_operands(sheet))
        reading = next(one for one in tried if (one.name, one.where) == (name, where))
        given = joined(sheet, reading.of(sheet), np.ones(sheet.weights.shape, bool))
        # both in float64, in another order: some units of the last place
        np.testing.assert_allclose(given, sheet.out, rtol=1e-10, atol=1e-12)
        assert not np.allclose(given, sheet.truth, rtol=1e-3)  # the mistake shows
