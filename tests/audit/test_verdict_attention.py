"""With several queries per request, the verdict reads every layout and names what is wrong."""

import numpy as np
import pytest
import torch

import labkernels
from labkernels.audit.dumps import audit
from labkernels.numerics import rounding
from labkernels.numerics.truth import oracle
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.verdict.verdict import decide
from labkernels.policy import NumericPolicy

POLICY = NumericPolicy(p="bf16", denominator=None, out="bf16")
Q_LENS, KV_LENS = (150, 1, 70), (150, 40, 200)


def normal(rng, *shape):
    return rounding.round_to(rng.standard_normal(shape).astype(np.float32), "bf16")


def problem_of(seed=0, *, q_lens=Q_LENS, kv_lens=KV_LENS, causal=True, q_size=1.0, page_size=16):
    """Return a problem of bf16 inputs, with 4 query heads on 2 KV heads and pages out of order."""
    rng = np.random.default_rng(seed)
    counts = [-(-n // page_size) for n in kv_lens]
    order = rng.permutation(sum(counts))
    table = np.zeros((len(kv_lens), max(counts)), np.int64)
    for b, count in enumerate(counts):
        table[b, :count] = order[sum(counts[:b]) :][:count]
    pools = (normal(rng, len(order), page_size, 2, dim) for dim in (64, 32))
    q = rounding.round_to(q_size * normal(rng, sum(q_lens), 4, 64), "bf16")
    ends = np.cumsum([0, *q_lens])
    return Problem(q, *pools, table, kv_lens, 0.125, cu_seqlens_q=ends, causal=causal)


def right(problem: Problem):
    """Return the output of a kernel that rounds P and the output to bf16, and nothing else."""
    out = np.zeros(problem.out_shape)
    for rows in problem.row_blocks():
        total = sum(
            rounding.round_to(p, "bf16") @ block.v for block, _, p in rows.weighted_blocks()
        )
        rows.put(out, total / rows.softmax.divisor)
    return rounding.round_to(out, "bf16")


def test_every_layout_gives_the_same_verdict(tmp_path):
    rng = np.random.default_rng(1)
    q, k, v = (normal(rng, *shape) for shape in ((2, 4, 40, 64), (2, 2, 48, 64), (2, 2, 48, 32)))
    dense = Problem.dense(q, k, v, causal=True, scale=0.125)
    expected = decide(dense, right(dense), policy=POLICY)
    assert expected.answer == "ROUNDING", expected.summary()
    lse2 = oracle.attention(dense)[1].astype(np.float32)
    as_dense = [torch.from_numpy(x).bfloat16() for x in (q, k, v)]
    packed = [x.transpose(1, 2).flatten(0, 1) for x in as_dense]
    out = torch.from_numpy(right(dense)).bfloat16()
    dense_out = out.unflatten(0, (2, 40)).transpose(1, 2)
    dense_lse2 = torch.from_numpy(lse2).unflatten(0, (2, 40)).transpose(1, 2)
    ends = {"cu_seqlens_q": torch.tensor([0, 40, 80]), "causal": True}
    pools = [x.unflatten(0, (6, 16)) for x in packed[1:]]
    cache = labkernels.PagedKV(
        *pools, torch.arange(6).int().view(2, 3), torch.tensor([48, 48]).int()
    )
    path = tmp_path / "saved.npz"
    bits = {
        name: x.contiguous().view(torch.uint16).numpy()
        for name, x in zip("qkv", packed, strict=True)
    }
    arrays = {"cu_seqlens": [0, 48, 96], "cu_seqlens_q": [0, 40, 80], "causal": True}
    np.savez(path, out=out.view(torch.uint16).numpy(), lse2=lse2, **bits, **arrays)
    for found in (
        labkernels.verdict(dense_out, *as_dense, causal=True, lse2=dense_lse2),
        labkernels.verdict(out, *packed, cu_seqlens=[0, 48, 96], lse2=lse2, **ends),
        labkernels.verdict(out, packed[0], cache=cache, **ends),
        labkernels.verdict(out, packed[0], *as_dense[1:], **ends),
        audit(path),
    ):
        assert found.answer == "ROUNDING", found.summary()
        # the sums of torch and NumPy differ in their last bits
        np.testing.assert_allclose(found.error, expected.error, rtol=0, atol=1e-14)
        np.testing.assert_allclose(found.bound, expected.bound, rtol=1e-5)
        np.testing.assert_allclose(found.sigma, expected.sigma, rtol=1e-6)
    wrong = labkernels.compare(out, out.roll(1, 0), *packed, cu_seqlens=[0, 48, 96], **ends)
    assert (wrong.wrong, wrong.first) == ("b", (0, 0, 0))


def test_a_place_in_the_query_tile_is_found_where_no_row_alone_shows_it():
    """Rows 60 to 63 of each tile err 1.7 times as much, which no single row shows."""
    problem = problem_of(5, q_lens=(640,), kv_lens=(640,))
    out, truth = right(problem), oracle.attention(problem)[0]
    late = np.flatnonzero(np.arange(640) % 64 >= 60)
    out[late] = truth[late] + 1.7 * (out[late] - truth[late])
    found = decide(problem, out, policy=POLICY)
    bugs = {item.name: item.where for item in found.findings if item.status == "bug"}
    assert bugs["spread of z by place in a tile of 64"] in [f"row {i} of 64" for i in range(60, 64)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cu_seqlens_q": [0, 2, 9]}, "cu_seqlens_q = .*, allowed: rising from 0 to 8"),
        ({"cu_seqlens_q": None}, "rows of page_table, kv_lens = 2, 2, allowed: 8"),
        ({"lse2": np.zeros((2, 4), np.float32)}, r"lse2.shape = \(2, 4\), allowed"),
        ({"q": np.zeros((2, 4, 4, 64), np.float32)}, "q.shape = .* allowed: .total_q, Hq, D"),
        ({"out": np.zeros((7, 4, 64), np.float32)}, "out.shape"),
    ],
    ids=["ends", "no ends", "lse2", "dense q", "out"],
)
def test_shapes_that_do_not_fit_are_refused(change, message):
    rng = np.random.default_rng(0)
    given = {"out": normal(rng, 8, 4, 64), "q": normal(rng, 8, 4, 64)}
    given |= {"k": normal(rng, 20, 2, 64), "v": normal(rng, 20, 2, 64)}
    given |= {"cu_seqlens": [0, 10, 20], "cu_seqlens_q": [0, 3, 8], "causal": True} | change
    with pytest.raises(ValueError, match=message):
        labkernels.verdict(**given)


def test_a_wrong_output_beside_a_request_without_tokens_is_named():
    problem = problem_of(q_lens=(40, 0, 30), kv_lens=(60, 20, 30))
    out = right(problem)
    out[:, 1] = 2 * out[:, 1]
    found = decide(problem, out, policy=POLICY)
    assert found.answer == "BUG"
    assert found.matches, found.summary()
