"""With several queries per request, the verdict reads every layout and names what is wrong."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from labkernels.numerics.verdict.diagnosis.whole_kernel.search import LEFT

import labkernels
from labkernels.audit.dumps import audit
from labkernels.numerics import rounding
from labkernels.numerics.truth import oracle
from labkernels.numerics.truth.problem import Problem
from labkernels.numerics.truth.rows import Block
from labkernels.numerics.verdict.diagnosis import addresses
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


def spoiled(problem: Problem, rows, **changes):
    """Return the right output, with some rows taken from a problem that differs."""
    out, other = right(problem), right(replace(problem, **changes))
    out[rows] = other[rows]
    return out


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("q_size", [1.0, 6.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_right_output_is_rounding(seed, q_size, causal):
    problem = problem_of(seed, causal=causal, q_size=q_size)
    found = decide(problem, right(problem), policy=POLICY, lse2=oracle.attention(problem)[1])
    assert found.answer == "ROUNDING", found.summary()


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


LATE = slice(100, 130)  # queries of the first sample, which has one query per key


# Rows beside these hide their keys, so that only these have another mask.
LEFT_OUT = "another mask: keys that the mask hides, or causal mask left out"


@pytest.mark.parametrize(
    ("rows", "changes", "name", "where"),
    [
        (LATE, {"causal": False}, LEFT_OUT, "queries 100 to 129"),
        (slice(160, 180), {"kv_lens": [150, 40, 199]}, "causal mask is strict", "its own key"),
        (slice(160, 180), {"kv_lens": [150, 40, 201]}, "keys that the mask hides", "one key more"),
        (slice(160, 200), {"kv_lens": [150, 40, 70]}, "causal mask aligned to the first key", ""),
    ],
    ids=["mask left out", "one key less", "one key more", "other corner"],
)
def test_a_wrong_mask_is_named(rows, changes, name, where):
    problem = problem_of()
    found = decide(problem, spoiled(problem, rows, **changes), policy=POLICY)
    assert found.answer == "BUG"
    assert found.matches, found.summary()
    assert found.matches[0].name == name, found.summary()
    assert where in found.matches[0].where
    assert "queries" in found.matches[0].where
    assert found.matches[0].rms <= LEFT < found.matches[0].was


def accumulated(scores, v, step, fmt):
    """Return the output of a kernel that accumulates o in 16 bits and l in float64."""
    m, l, o = -np.inf, 0.0, 0.0
    for i in range(0, len(scores), step):
        top = max(m, scores[i : i + step].max())
        p = np.exp2(scores[i : i + step] - top)
        l = l * np.exp2(m - top) + p.sum()
        o = o * np.exp2(m - top) + rounding.round_to(p, "bf16") @ v[i : i + step]
        o, m = rounding.round_to(o, fmt), top
    return o / l


def stale(scores, v, step):
    """Return the output of a kernel that rescales o by the factor of the step before."""
    m, before, l, o = -np.inf, -np.inf, 0.0, 0.0
    for i in range(0, len(scores), step):
        top = max(m, scores[i : i + step].max())
        p = np.exp2(scores[i : i + step] - top)
        l = l * np.exp2(m - top) + p.sum()
        o = o * (np.exp2(before - m) if before > -np.inf else 1.0) + p @ v[i : i + step]
        before, m = m, top
    return o / l


def unscaled_l(scores, v, step):
    """Return the output of a kernel that does not rescale l."""
    m, l = -np.inf, 0.0
    for i in range(0, len(scores), step):
        m = max(m, scores[i : i + step].max())
        l = l + np.exp2(scores[i : i + step] - m).sum()
    return np.exp2(scores - m) @ v / l


def partial(scores, v, n_keys):
    """Return the output of splits that store their normalised outputs in bf16."""
    m, outputs, sums = scores.max(), [], []
    for i in range(0, len(scores), n_keys):
        p = np.exp2(scores[i : i + n_keys] - m)
        sums.append(p.sum())
        outputs.append(rounding.round_to(p @ v[i : i + n_keys] / p.sum(), "bf16"))
    return np.array(sums) @ np.array(outputs) / np.sum(sums)


@pytest.mark.parametrize(
    ("mistake", "name", "v_mean"),
    [
        (lambda s, v: accumulated(s, v, 64, "bf16"), "o accumulated in bf16", 2.0),
        (lambda s, v: stale(s, v, 64), "o rescaled by a stale maximum", 0.0),
        (lambda s, v: unscaled_l(s, v, 64), "l not rescaled", 1.0),
        (lambda s, v: partial(s, v, 128), "partial outputs merged in bf16", 1.0),
    ],
    ids=["accumulator", "stale maximum", "l", "partial outputs"],
)
def test_a_wrong_sum_of_every_row_is_named(mistake, name, v_mean):
    """Each request has one query, and out is fp32, so that the store does not hide the sums."""
    problem = problem_of(3, q_lens=(1, 1), kv_lens=(1000, 700), causal=False)
    v_pool = rounding.round_to(problem.v_pool + v_mean, "bf16")
    problem, out = replace(problem, v_pool=v_pool), np.zeros(problem.out_shape)
    for rows in problem.row_blocks():
        block = Block(rows, 0, int(rows.n_keys.max()))
        found = [
            [mistake(s, v) for s in scores]
            for scores, v in zip(block.score_log2, block.v, strict=True)
        ]
        rows.put(out, np.array(found))
    found = decide(problem, np.float32(out), policy=replace(POLICY, out="fp32"))
    assert found.answer in ("BUG", "LESS EXACT"), found.summary()
    names = [match.name for match in found.matches]
    assert any(known.startswith(name) for known in names), found.summary()


@pytest.mark.parametrize("way", ["zero", "wrapped"])
def test_a_32_bit_offset_that_overflows_is_named(way, monkeypatch):
    problem = problem_of(4, q_lens=(1, 1), kv_lens=(400, 400), causal=False)
    page = problem.v_pool[0].size
    monkeypatch.setattr(addresses, "_INT32", 30 * page)
    far = problem.page_table >= 30
    if way == "wrapped":  # as an unsigned number would
        monkeypatch.setattr(addresses, "_INT32", 15 * page)
        wrong = replace(problem, page_table=problem.page_table % 30)
    else:
        pools = {name: getattr(problem, name).copy() for name in ("k_pool", "v_pool")}
        for pool in pools.values():
            pool[problem.page_table[far]] = 0
        wrong = replace(problem, **pools)
    found = decide(problem, right(wrong), policy=POLICY)
    assert found.answer == "BUG"
    assert any(match.name == "a 32-bit offset overflows" for match in found.matches), (
        found.summary()
    )


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


def test_a_causal_flag_of_several_numbers_is_refused(tmp_path):
    tensors = {name: np.zeros((1, 1, 1, 8), np.float32) for name in ("q", "k", "v", "out")}
    np.savez(tmp_path / "saved.npz", causal=np.array([0, 1]), **tensors)
    with pytest.raises(ValueError, match=r"causal.shape = \(2,\), allowed: one number"):
        audit(tmp_path / "saved.npz")


def test_a_wrong_output_beside_a_request_without_tokens_is_named():
    problem = problem_of(q_lens=(40, 0, 30), kv_lens=(60, 20, 30))
    out = right(problem)
    out[:, 1] = 2 * out[:, 1]
    found = decide(problem, out, policy=POLICY)
    assert found.answer == "BUG"
    assert found.matches, found.summary()
