import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkernels.numerics.truth import online_softmax

ROWS, DIM = 3, 4
SEEDS = st.integers(0, 2**32 - 1)


def state_of(rng, n_keys: int, *, masked: float = 0.2, spread: float = 30.0):
    scores = rng.normal(0, spread, (ROWS, n_keys))
    scores[rng.random(scores.shape) < masked] = -np.inf
    v = rng.standard_normal((n_keys, DIM))
    return online_softmax.update(online_softmax.empty((ROWS,), DIM), scores, v)


def assert_same(a, b, *, roundings: float):
    """Assert that states are equal within some float64 roundings of the values that were added."""
    assert np.array_equal(a.m, b.m)
    unit = roundings * 2.0**-53
    assert not (np.abs(a.l - b.l) > unit * np.maximum(a.l, b.l)).any()
    # |o| <= l max|v|, and v is a standard normal
    assert not (np.abs(a.o - b.o) > 8 * unit * np.maximum(a.l, b.l)[:, None]).any()


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS, sizes=st.tuples(*[st.integers(0, 9)] * 3))
def test_merge_is_associative_and_commutative(seed, sizes):
    rng = np.random.default_rng(seed)
    a, b, c = (state_of(rng, n) for n in sizes)
    merge = online_softmax.merge
    assert_same(merge(merge(a, b), c), merge(a, merge(b, c)), roundings=512)
    assert_same(merge(a, b), merge(b, a), roundings=0)


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS, n=st.integers(0, 9))
def test_empty_is_the_identity(seed, n):
    a = state_of(np.random.default_rng(seed), n, masked=0.6)
    nothing = online_softmax.empty((ROWS,), DIM)
    for merged in (online_softmax.merge(a, nothing), online_softmax.merge(nothing, a)):
        assert_same(merged, a, roundings=0)


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS, n=st.integers(0, 9))
def test_update_is_the_merge_of_a_singleton(seed, n):
    rng = np.random.default_rng(seed)
    a = state_of(rng, n)
    score, v = rng.normal(0, 30, (ROWS, 1)), rng.standard_normal((1, DIM))
    one = online_softmax.State(m=score[:, 0], l=np.ones(ROWS), o=np.repeat(v, ROWS, axis=0))
    updated = online_softmax.update(a, score, v)
    assert_same(updated, online_softmax.merge(a, one), roundings=0)


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS, n=st.integers(1, 40), cut=st.integers(0, 40))
def test_blocks_agree_with_softmax_at_once(seed, n, cut):
    rng = np.random.default_rng(seed)
    scores, v = rng.normal(0, 5, (ROWS, n)), rng.standard_normal((n, DIM))
    cut = min(cut, n)
    state = online_softmax.empty((ROWS,), DIM)
    for part in (slice(0, cut), slice(cut, n)):
        state = online_softmax.update(state, scores[:, part], v[part])
    o, lse2 = online_softmax.finalize(state)
    p = np.exp2(scores)
    np.testing.assert_allclose(o, p @ v / p.sum(1, keepdims=True), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(lse2, np.log2(p.sum(1)), rtol=1e-12, atol=1e-13)


def test_rows_without_keys_finish_as_zero_and_minus_infinity():
    state = online_softmax.empty((2, ROWS), DIM, dtype=np.float32)
    masked = np.full((2, ROWS, 5), -np.inf, dtype=np.float32)
    state = online_softmax.update(state, masked, np.ones((2, 5, DIM), dtype=np.float32))
    state = online_softmax.update(state, masked[..., :0], np.ones((2, 0, DIM), dtype=np.float32))
    o, lse2 = online_softmax.finalize(online_softmax.merge(state, state))
    assert not o.any()
    assert (lse2 == -np.inf).all()
    assert o.dtype == lse2.dtype == np.float32


def test_huge_scores_neither_overflow_nor_vanish():
    scores, state = np.array([[1e5, 1e5 - 1, -1e5]]), online_softmax.empty((1,), 1)
    for j in range(3):
        state = online_softmax.update(state, scores[:, j : j + 1], np.array([[float(j)]]))
    o, lse2 = online_softmax.finalize(state)
    assert o[0, 0] == pytest.approx(1 / 3)
    assert lse2[0] == pytest.approx(1e5 + np.log2(1.5))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_score_surfaces(bad):
    scores = np.array([[1.0, bad, 2.0]])
    state = online_softmax.update(online_softmax.empty((1,), 2), scores, np.ones((3, 2)))
    state = online_softmax.merge(state, online_softmax.empty((1,), 2))
    o, lse2 = online_softmax.finalize(state)
    assert np.isnan(o).all()
    assert np.isnan(lse2).all()
