"""The float64 gradients are those of torch's autograd, and mistakes exceed their bounds."""

import math

import numpy as np
import pytest
import torch

from labkernels.numerics.error.gradient_bounds import gradient_bounds
from labkernels.numerics.truth import oracle
from labkernels.numerics.truth.gradients import Given, gradients
from labkernels.numerics.truth.problem import BLOCK_KEYS, BLOCK_SCORES, Problem
from labkernels.policy import NumericPolicy

Q_LENS, KV_LENS = (3, 0, 40, 7, 5), (9, 4, 20, 0, 5)


def problem(*, causal, group=3, kv_heads=2, head_dim=16, q_lens=Q_LENS, kv_lens=KV_LENS):
    rng = np.random.default_rng(1)
    q = rng.standard_normal((sum(q_lens), group * kv_heads, head_dim))
    k, v = rng.standard_normal((2, sum(kv_lens), kv_heads, head_dim))
    how = {"scale": 1 / math.sqrt(head_dim), "causal": causal}
    ends = [np.concatenate([[0], np.cumsum(n)]) for n in (q_lens, kv_lens)]
    return Problem.packed(q, k, v, ends[1], cu_seqlens_q=ends[0], **how), k, v


def of_autograd(p, k, v, dout):
    q, k, v = (torch.tensor(x, requires_grad=True) for x in (p.q, k, v))
    ends_k = np.concatenate([[0], np.cumsum(p.kv_lens)])
    out = []
    for b, (first, end) in enumerate(zip(p.q_ends, p.q_ends[1:], strict=False)):
        keys, values = (x[ends_k[b] : ends_k[b + 1]].repeat_interleave(p.group, 1) for x in (k, v))
        score = torch.einsum("mhd,nhd->hmn", q[first:end], keys) * p.scale
        rows, columns = score.shape[1:]
        seen = torch.ones(rows, columns, dtype=torch.bool)
        if p.causal:
            seen = torch.arange(columns)[None] <= torch.arange(rows)[:, None] + columns - rows
        weight = torch.softmax(score.masked_fill(~seen, -1e30), -1) * seen
        out.append(torch.einsum("hmn,nhd->mhd", weight, values))
    torch.cat(out).backward(torch.tensor(dout))
    return [x.grad.numpy() for x in (q, k, v)]


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_gradients_are_those_of_autograd(causal):
    p, k, v = problem(causal=causal)
    dout = np.random.default_rng(2).standard_normal(p.out_shape)
    found = gradients(Given(p, dout, *oracle.attention(p)))
    for mine, torchs in zip(found, of_autograd(p, k, v, dout), strict=True):
        np.testing.assert_allclose(mine, torchs, atol=1e-13)


@pytest.mark.parametrize("block", [1, 7])
def test_blocks_do_not_change_them(block, monkeypatch):
    p, *_ = problem(causal=True)
    given = Given(p, np.ones(p.out_shape), *oracle.attention(p))
    whole = gradients(given)
    monkeypatch.setitem(BLOCK_KEYS, "cpu", block)
    monkeypatch.setitem(BLOCK_SCORES, "cpu", 8)
    p, *_ = problem(causal=True)
    again = gradients(Given(p, given.dout, given.out, given.lse2))
    for mine, other in zip(whole, again, strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-13)


@pytest.mark.parametrize("p_format", ["fp16", "bf16"])
def test_a_wrong_sum_is_out_of_bounds(p_format):
    """The effect of each mistake on some element exceeds the bound."""
    p, *_ = problem(causal=True)
    dout = np.random.default_rng(2).standard_normal(p.out_shape)
    out, lse2 = oracle.attention(p)
    right = gradients(Given(p, dout, out, lse2))
    allowed = gradient_bounds(Given(p, dout, out, lse2), NumericPolicy(p=p_format, out=p_format))
    shifted, *_ = problem(causal=False)
    wrong = {
        "no delta": gradients(Given(p, dout, 0 * out, lse2)),
        "lse in base e": gradients(Given(p, dout, out, lse2 * math.log(2))),
        "no mask": gradients(Given(shifted, dout, out, lse2)),
        "no scale": tuple(x * y for x, y in zip(right, (4.0, 4.0, 1.0), strict=True)),
    }
    for name, found in wrong.items():
        errors = [np.abs(x - y) for x, y in zip(found, right, strict=True)]
        assert any((e > b).any() for e, b in zip(errors, allowed, strict=True)), name
    for bound, exact in zip(allowed, right, strict=True):
        assert (bound > 0).all()
        assert np.median(bound) < 0.1 * np.abs(exact).max()


def test_nan_has_no_bound():
    p, *_ = problem(causal=False)
    dout = np.ones(p.out_shape)
    dout[0, 0, 0] = np.nan
    given = Given(p, dout, *oracle.attention(p))
    allowed = gradient_bounds(given, NumericPolicy(p="bf16", out="bf16"))
    for exact, bound in zip(gradients(given), allowed, strict=True):
        wild = np.isnan(exact)
        assert 0 < wild.sum() < wild.size
        assert not (bound[wild] >= 0.0).any()  # not even a kernel that stores 0 there passes
        assert np.isfinite(bound[~wild]).all()
