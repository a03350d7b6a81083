"""The float64 gradients are those of torch's autograd, and mistakes exceed their bounds."""

import math

import numpy as np
import pytest
import torch

from labkernels.formats import named
from labkernels.numerics.error.gradient_bounds import gradient_bounds
from labkernels.numerics.truth import oracle
from labkernels.numerics.truth.gradients import Given, gradients, names_of
from labkernels.numerics.truth.problem import BLOCK_KEYS, BLOCK_SCORES, Problem
from labkernels.numerics.truth.variant import VariantTensors
from labkernels.policy import NumericPolicy

Q_LENS, KV_LENS = (3, 0, 40, 7, 5), (9, 4, 20, 0, 5)


HEADS = np.random.default_rng(3)
SLOPES, SINKS = 2.0 ** -HEADS.uniform(0, 8, 6), HEADS.standard_normal(6)
VARIANTS = {
    "left": {"window_left": 3},
    "both ends": {"window_left": 2, "window_right": 1},
    "sinks": {"sinks": SINKS},
    "cap": {"soft_cap": 0.7},
    "slopes": {"alibi": SLOPES},
    "all": {"window_left": 4, "sinks": SINKS, "soft_cap": 0.7, "alibi": SLOPES},
}


def problem(*, causal, group=3, kv_heads=2, head_dim=16, q_lens=Q_LENS, kv_lens=KV_LENS, **variant):
    rng = np.random.default_rng(1)
    q = rng.standard_normal((sum(q_lens), group * kv_heads, head_dim))
    k, v = rng.standard_normal((2, sum(kv_lens), kv_heads, head_dim))
    how = {"scale": 1 / math.sqrt(head_dim), "causal": causal}
    how["variant"] = VariantTensors(**variant) if variant else None
    ends = [np.concatenate([[0], np.cumsum(n)]) for n in (q_lens, kv_lens)]
    return Problem.packed(q, k, v, ends[1], cu_seqlens_q=ends[0], **how), k, v


def of_autograd(p, k, v, dout):
    variant = p.variant or VariantTensors()
    leaves = [p.q, k, v] + ([] if variant.sinks is None else [variant.sinks])
    q, k, v, *sinks = leaves = [torch.tensor(x, requires_grad=True) for x in leaves]
    ends_k = np.concatenate([[0], np.cumsum(p.kv_lens)])
    out = []
    for b, (first, end) in enumerate(zip(p.q_ends, p.q_ends[1:], strict=False)):
        keys, values = (x[ends_k[b] : ends_k[b + 1]].repeat_interleave(p.group, 1) for x in (k, v))
        score = torch.einsum("mhd,nhd->hmn", q[first:end], keys) * p.scale
        rows, columns = score.shape[1:]
        after = torch.arange(columns)[None] - torch.arange(rows)[:, None] - columns + rows
        right = 0 if p.causal else variant.window_right
        seen = after <= (rows + columns if right is None else right)
        if variant.window_left is not None:
            seen = seen & (after >= -variant.window_left)
        if variant.soft_cap is not None:
            score = variant.soft_cap * torch.tanh(score / variant.soft_cap)
        if variant.alibi is not None:
            score = score + torch.tensor(variant.alibi)[:, None, None] * after
        score = score.masked_fill(~seen, -1e30)
        if sinks:  # one more score, without a value
            score = torch.cat((sinks[0][:, None, None].expand(-1, rows, 1), score), -1)
        weight = torch.softmax(score, -1)[..., len(sinks) :] * seen
        out.append(torch.einsum("hmn,nhd->mhd", weight, values))
    torch.cat(out).backward(torch.tensor(dout))
    return [x.grad.numpy() for x in leaves]


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_gradients_are_those_of_autograd(causal):
    p, k, v = problem(causal=causal)
    dout = np.random.default_rng(2).standard_normal(p.out_shape)
    found = gradients(Given(p, dout, *oracle.attention(p)))
    for mine, torchs in zip(found, of_autograd(p, k, v, dout), strict=True):
        np.testing.assert_allclose(mine, torchs, atol=1e-13)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_gradients_of_variants_are_those_of_autograd(variant, causal):
    p, k, v = problem(causal=causal and "window_right" not in variant, **variant)
    dout = np.random.default_rng(2).standard_normal(p.out_shape)
    given = Given(p, dout, *oracle.attention(p))
    for name, mine, torchs in zip(
        names_of(p), gradients(given), of_autograd(p, k, v, dout), strict=True
    ):
        np.testing.assert_allclose(mine, torchs, atol=1e-13, err_msg=name)


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


@pytest.mark.parametrize("variant", [{}, VARIANTS["all"]], ids=["plain", "all"])
@pytest.mark.parametrize("fmt", ["fp16", "bf16"])
def test_most_bounds_are_below_two_roundings_of_the_largest_gradient(fmt, variant):
    p, *_ = problem(causal=True, **variant)
    dout = np.random.default_rng(2).standard_normal(p.out_shape)
    given = Given(p, dout, *oracle.attention(p))
    allowed = gradient_bounds(given, NumericPolicy(p=fmt, out=fmt))
    for exact, bound in zip(gradients(given), allowed, strict=True):
        assert (bound > 0).all()
        assert np.median(bound) <= 2 * named(fmt).unit_roundoff * np.abs(exact).max()


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
