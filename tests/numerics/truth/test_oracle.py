import numpy as np
import pytest

from labkernels.numerics.truth import oracle, problem
from labkernels.numerics.truth.problem import Problem


def random_cache(rng, kv_lens, *, page_size, heads=(4, 2), dim=8, spare=3):
    """Return a pool with scattered pages, and NaN wherever no request owns the slot."""
    counts = [-(-n // page_size) for n in kv_lens]
    n_pages = sum(counts) + spare
    order = rng.permutation(n_pages)
    table = np.full((len(kv_lens), max([*counts, 1])), -1, dtype=np.int32)
    k, v = (np.full((n_pages, page_size, heads[1], dim), np.nan) for _ in range(2))
    first = 0
    for b, (n, count) in enumerate(zip(kv_lens, counts, strict=True)):
        table[b, :count] = order[first : first + count]
        for j in range(n):
            k[table[b, j // page_size], j % page_size] = rng.standard_normal((heads[1], dim))
            v[table[b, j // page_size], j % page_size] = rng.standard_normal((heads[1], dim))
        first += count
    q = rng.standard_normal((len(kv_lens), heads[0], dim))
    return q, k, v, table, np.array(kv_lens, dtype=np.int32)


@pytest.mark.parametrize("page_size", [1, 3, 16, 64])
@pytest.mark.parametrize("block_keys", [1, 20, 4096])
def test_paged_decode_agrees_with_plain_attention(page_size, block_keys, monkeypatch):
    rng = np.random.default_rng(11)
    monkeypatch.setitem(problem.BLOCK_KEYS, "cpu", block_keys)
    q, k, v, table, kv_lens = random_cache(rng, [0, 1, 15, 16, 17, 63], page_size=page_size)
    o, lse2 = oracle.attention(Problem(q, k, v, table, kv_lens, scale=0.3))
    assert o.shape == q.shape
    assert lse2.shape == q.shape[:2]
    for b, n in enumerate(kv_lens):
        pages = table[b, : -(-n // page_size)]
        for h in range(4):
            keys, values = (pool[pages].reshape(-1, 2, 8)[:n, h // 2] for pool in (k, v))
            o_h, lse2_h = oracle.attention_float64(q[b, h : h + 1], keys, values, scale=0.3)
            np.testing.assert_allclose(o[b, h], o_h[0], rtol=1e-12, atol=1e-14)
            np.testing.assert_allclose(lse2[b, h], lse2_h[0], rtol=1e-12)
    assert not o[0].any()
    assert (lse2[0] == -np.inf).all()


@pytest.mark.parametrize(("change", "message"), [
    ({"kv_lens": np.array([-1, 5])}, r"kv_lens\[0\] = -1, allowed: 0 to 8"),
    ({"kv_lens": np.array([5, 9])}, r"kv_lens\[1\] = 9, allowed: 0 to 8"),
    ({"kv_lens": np.array([5])}, "rows of page_table, kv_lens = 2, 1, allowed: 2"),
    ({"page_table": np.array([[0, 99], [1, 2]])}, r"page_table\[0\] = .*, allowed: 0 to 6"),
    ({"page_table": np.array([[0, -1], [1, 2]])}, r"page_table\[0\] = .*, allowed: 0 to 6"),
    ({"q": np.zeros((2, 3, 8))}, "q heads = 3, allowed: multiples of 2"),
    ({"q": np.zeros((2, 4, 7))}, "k_pool head_dim = 8, allowed: that of q, 7"),
    ({"q": np.zeros((2, 4))}, "q.ndim = 2, allowed: 3"),
    ({"v_pool": np.zeros((7, 4, 1, 8))}, "v_pool.shape"),
])  # fmt: skip
def test_malformed_problems_are_refused(change, message):
    rng = np.random.default_rng(14)
    q, k, v, table, kv_lens = random_cache(rng, [5, 5], page_size=4)
    given = {"q": q, "k_pool": k, "v_pool": v, "page_table": table, "kv_lens": kv_lens} | change
    with pytest.raises(ValueError, match=message):
        Problem(**given, scale=1.0)


def test_attention_batches_and_refuses_other_shapes():
    rng = np.random.default_rng(15)
    q, k, v = (rng.standard_normal(s) for s in ((2, 5, 3), (2, 7, 3), (2, 7, 4)))
    o, lse2 = oracle.attention_float64(q, k, v, scale=0.5)
    s = 0.5 * np.einsum("bmd,bnd->bmn", q, k)
    p = np.exp(s)
    np.testing.assert_allclose(o, p @ v / p.sum(-1, keepdims=True), rtol=1e-12)
    np.testing.assert_allclose(lse2, np.log2(p.sum(-1)), rtol=1e-12)
    o, lse2 = oracle.attention_float64(q, k[:, :0], v[:, :0], scale=0.5)
    assert not o.any()
    assert (lse2 == -np.inf).all()
    with pytest.raises(ValueError, match=r"k \(2, 7, 3\), v \(2, 6, 4\), allowed"):
        oracle.attention_float64(q, k, v[:, :6], scale=0.5)
