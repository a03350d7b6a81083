"""Each of several queries per request sees its keys, causal or not, as in plain attention."""

from dataclasses import replace

import numpy as np
import pytest

from labkernels.numerics.error import bounds, sigma
from labkernels.numerics.truth import oracle, problem
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.truth.rows import weighted_sum
from labkernels.policy import NumericPolicy

BF16 = NumericPolicy(p="bf16", denominator=None, out="bf16")
HEADS, KV_HEADS, DIM, V_DIM = 6, 2, 8, 5
Q_LENS = (3, 0, 1, 7, 4, 2)
KV_LENS = (5, 9, 17, 7, 2, 0)  # the last two have more queries than keys


def packed(*, causal, q_lens=Q_LENS, kv_lens=KV_LENS, seed=3):
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((sum(q_lens), HEADS, DIM))
    k = rng.standard_normal((sum(kv_lens), KV_HEADS, DIM))
    v = rng.standard_normal((sum(kv_lens), KV_HEADS, V_DIM))
    ends_q, ends_k = (np.cumsum([0, *lens]) for lens in (q_lens, kv_lens))
    return (q, k, v, ends_k), {"cu_seqlens_q": ends_q, "causal": causal, "scale": 0.3}


def plain(q, k, v, ends_k, *, cu_seqlens_q, causal, scale):
    """Return attention row by row, each over the keys that the row sees."""
    o, lse2 = np.zeros((*q.shape[:2], v.shape[-1])), np.full(q.shape[:2], -np.inf)
    for b in range(len(ends_k) - 1):
        n_q, n_keys = cu_seqlens_q[b + 1] - cu_seqlens_q[b], ends_k[b + 1] - ends_k[b]
        for i in range(n_q):
            seen = max(0, n_keys - n_q + i + 1) if causal else n_keys
            row, keys = cu_seqlens_q[b] + i, slice(ends_k[b], ends_k[b] + seen)
            for h in range(q.shape[1]):
                head = h // (q.shape[1] // k.shape[1])
                found = oracle.attention_float64(
                    q[row, h : h + 1], k[keys, head], v[keys, head], scale=scale
                )
                o[row, h], lse2[row, h] = found[0][0], found[1][0]
    return o, lse2


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("block_keys", "block_scores"), [(1, 1), (4, 50), (1024, 2**19)])
def test_ragged_queries_agree_with_plain_attention(causal, block_keys, block_scores, monkeypatch):
    monkeypatch.setitem(problem.BLOCK_KEYS, "cpu", block_keys)
    monkeypatch.setitem(problem.BLOCK_SCORES, "cpu", block_scores)
    tensors, how = packed(causal=causal)
    o, lse2 = oracle.attention(Problem.packed(*tensors, **how))
    expected_o, expected_lse2 = plain(*tensors, **how)
    np.testing.assert_allclose(o, expected_o, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(lse2, expected_lse2, rtol=1e-12)


def test_a_row_sees_the_keys_up_to_its_own_place_from_the_end():
    tensors, how = packed(causal=True)
    found = Problem.packed(*tensors, **how)
    assert found.n_keys.tolist() == [3, 4, 5, 17, 1, 2, 3, 4, 5, 6, 7, 0, 0, 1, 2, 0, 0]
    assert replace(found, causal=False).n_keys[:4].tolist() == [5, 5, 5, 17]
    o, lse2 = oracle.attention(found)
    blind = found.n_keys == 0
    assert not o[blind].any()
    assert (lse2[blind] == -np.inf).all()
    for out in (*bounds.both_bounds(found, BF16), sigma.sigma(found, BF16)):
        assert not out[blind].any()
        assert np.isfinite(out).all()
        assert (out[~blind] > 0).all()


@pytest.mark.parametrize("causal", [True, False])
def test_every_row_is_judged_as_if_it_were_alone(causal, monkeypatch):
    """Bounds, sigma and truth of a row are those of a decode over the keys that it sees."""
    monkeypatch.setitem(problem.BLOCK_KEYS, "cpu", 4)
    tensors, how = packed(causal=causal)
    whole = Problem.packed(*tensors, **how)
    tables = whole.page_table[whole.request_of], whole.n_keys
    alone = Problem(whole.q, whole.k_pool, whole.v_pool, *tables, whole.scale)
    together, apart = (
        (*oracle.attention(p), *bounds.both_bounds(p, BF16), sigma.sigma(p, BF16))
        for p in (whole, alone)
    )
    for i, pair in enumerate(zip(together, apart, strict=True)):
        rtol = 1e-9 if i < 2 else 1e-5  # truth in float64, estimates in fp32
        np.testing.assert_allclose(*pair, rtol=rtol, atol=1e-15)


def test_dense_tensors_are_the_same_problem():
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal(s) for s in ((2, 6, 3, 8), (2, 2, 20, 8), (2, 2, 20, 5)))
    dense = Problem.dense(q, k, v, kv_lens=[20, 11], causal=True, scale=0.5)
    o, lse2 = oracle.attention(dense)
    assert o.shape == (6, 6, 5)
    for b, length in enumerate((20, 11)):
        for i in range(3):
            seen = length - 2 + i
            args = (q[b, 4, i : i + 1], k[b, 1, :seen], v[b, 1, :seen])
            o_row, lse2_row = oracle.attention_float64(*args, scale=0.5)
            np.testing.assert_allclose(o[3 * b + i, 4], o_row[0], rtol=1e-12)
            np.testing.assert_allclose(lse2[3 * b + i, 4], lse2_row[0], rtol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
def test_no_request_and_no_key_are_problems_too(causal):
    how = {"causal": causal, "scale": 1.0}
    q, k = np.zeros((0, 4, 8)), np.zeros((0, 2, 8))
    none = Problem.packed(q, k, k, [0], cu_seqlens_q=[0], **how)
    assert oracle.attention(none)[0].shape == (0, 4, 8)
    empty = Problem.packed(np.zeros((2, 4, 8)), k, k, [0, 0], cu_seqlens_q=[0, 2], **how)
    o, lse2 = oracle.attention(empty)
    assert not o.any()
    assert (lse2 == -np.inf).all()
    assert not bounds.out_bound(empty, BF16).any()


def test_what_is_not_finite_reaches_the_rows_that_see_it_and_no_other():
    (q, k, v, ends), how = packed(causal=True, q_lens=(4,), kv_lens=(6,))
    for tensor, wild in ((k, np.nan), (v, np.nan), (v, np.inf)):
        tensors = [x.copy() for x in (q, k, v)]
        tensors[1 if tensor is k else 2][4, 1] = wild
        found = Problem.packed(*tensors, ends, **how)
        o, _ = oracle.attention(found)
        bound = bounds.out_bound(found, BF16)
        for out in (o, bound):
            assert np.isfinite(out[:2]).all()
            assert np.isfinite(out[2:, :3]).all()
            assert not np.isfinite(out[2:, 3:]).any()


def test_a_weight_of_zero_outweighs_what_is_not_finite():
    weights = np.array([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]])
    values = np.array([[np.inf, 1.0], [2.0, np.nan]])
    expected = [[2.0, np.nan], [np.inf, np.nan], [np.inf, 1.0]]
    np.testing.assert_array_equal(weighted_sum(weights, values), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cu_seqlens_q": [0, 3]}, "rows of page_table, kv_lens = 6, 6, allowed: 1"),
        ({"cu_seqlens_q": [0, 3, 2, 4, 11, 15, 17]}, r"cu_seqlens_q = .* allowed: rising"),
        ({"cu_seqlens_q": [0, 3, 3, 4, 11, 15, 16]}, "allowed: rising from 0 to 17"),
        ({"cu_seqlens_q": [1, 3, 3, 4, 11, 15, 17]}, "allowed: rising from 0 to 17"),
        ({"cu_seqlens_q": np.arange(7.0)}, "cu_seqlens_q.dtype = float64, allowed: integers"),
        ({"cu_seqlens_q": [[0, 17]]}, "cu_seqlens_q.ndim = 2, allowed: 1"),
        ({"cu_seqlens_q": None}, "rows of page_table, kv_lens = 6, 6, allowed: 17"),
        ({"scale": float("nan")}, "scale = nan, allowed: a finite number"),
    ],
)
def test_malformed_queries_are_refused(change, message):
    tensors, how = packed(causal=True)
    with pytest.raises(ValueError, match=message):
        Problem.packed(*tensors, **how | change)


@pytest.mark.parametrize("ends", [[0, 5, 4], [1, 2, 3], [0, 5, 99], []])
def test_ends_of_keys_that_do_not_rise_to_the_last_are_refused(ends):
    k = np.zeros((40, 2, 8))
    with pytest.raises(ValueError, match=r"cu_seqlens_k = .* allowed: rising from 0 to 40"):
        Problem.packed(np.zeros((2, 4, 8)), k, k, ends, scale=1.0)
