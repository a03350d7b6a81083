"""torch differentiates attention of every variant, and its sinks, as autograd in float64 does."""

import math

import pytest
import torch

from labkernels.compat import flash_attn
from labkernels.ops.attention import TAKEN, attention

Q_LENS, KV_LENS, GROUP = (3, 20, 33), (9, 40, 33), 2
VARIANTS = [
    {},
    {"window_left": 6},
    {"window_left": 4, "window_right": 5},
    {"soft_cap": 0.8},
    {"alibi": torch.tensor([0.5, 0.25, 0.125, 0.02])},
    {"sinks": torch.tensor([0.5, -1.0, 2.0, -math.inf])},
    {"window_left": 6, "soft_cap": 0.8, "sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
]
NEAR = 0.02  # of the largest gradient: P and dS are rounded to fp16, each with 11 bits


def ends(lengths):
    return torch.tensor([0, *lengths]).cumsum(0).int()


def tensors(seed=0, dim=64, dim_v=64):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(sum(Q_LENS), 4, dim), (sum(KV_LENS), 2, dim), (sum(KV_LENS), 2, dim_v)]
    return [torch.randn(shape, generator=generator).half() for shape in shapes]


def in_float64(q, k, v, *, causal=False, **variant):
    """Return the output by torch's own operations, for autograd."""
    out, first, begin = [], 0, 0
    for n, keys in zip(Q_LENS, KV_LENS, strict=True):
        mine, theirs = slice(first, first + n), slice(begin, begin + keys)
        wide = [x[theirs].repeat_interleave(GROUP, 1) for x in (k, v)]
        s = torch.einsum("mhd,nhd->hmn", q[mine], wide[0]) / math.sqrt(q.shape[-1])
        after = torch.arange(keys)[None] - torch.arange(n)[:, None] - (keys - n)
        right = 0 if causal else variant.get("window_right", keys + n)
        seen = (after <= right) & (after >= -variant.get("window_left", keys + n))
        if "soft_cap" in variant:
            s = variant["soft_cap"] * torch.tanh(s / variant["soft_cap"])
        if "alibi" in variant:
            s = s + variant["alibi"].double()[:, None, None] * after
        s = s.masked_fill(~seen, -math.inf)
        if "sinks" in variant:
            s = torch.cat((s, variant["sinks"][:, None, None].expand(4, n, 1)), -1)
        p = torch.softmax(s, -1)[..., :keys]
        out.append(torch.einsum("hmn,nhd->mhd", p, wide[1]))
        first, begin = first + n, begin + keys
    return torch.cat(out)


@pytest.mark.few_of_each("way", 3)
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: "-".join(variant))
@pytest.mark.parametrize("way", ["autograd", "torch.func"])
def test_gradients_are_those_of_float64(variant, way):
    given, causal = tensors(), "window_right" not in variant
    others = {name: x for name, x in variant.items() if name != "sinks"}
    named = {name: x for name, x in variant.items() if name == "sinks"}
    dout = torch.randn(given[0].shape, generator=torch.Generator().manual_seed(1)).half()

    def value(q, k, v, *sinks):
        more = others | dict(zip(named, sinks, strict=True))
        out, _ = attention(q, k, v, ends(Q_LENS), ends(KV_LENS), causal=causal, **more)
        return (out.float() * dout.float()).sum()

    exact = [x.double().requires_grad_() for x in (*given, *named.values())]
    more = others | dict(zip(named, exact[3:], strict=True))
    wanted = torch.autograd.grad(
        (in_float64(*exact[:3], causal=causal, **more) * dout.double()).sum(), exact
    )
    if way == "autograd":
        leaves = [x.clone().requires_grad_() for x in (*given, *named.values())]
        found = torch.autograd.grad(value(*leaves), leaves)
    else:
        found = torch.func.grad(value, argnums=tuple(range(len(exact))))(*given, *named.values())
    for mine, right in zip(found, wanted, strict=True):
        assert mine.dtype in (torch.float16, torch.float32)
        assert (mine - right).abs().max() <= NEAR * right.abs().max()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dims", [(32, 32), (96, 96), (33, 33), (192, 128), (160, 100)], ids=str)
def test_a_head_dim_between_powers_of_two(dims, monkeypatch):
    """The rows lie among NaN, which no copy brings along; the caller's memory stays as it was."""
    if dims in TAKEN:  # the kernels take them as they are
        monkeypatch.delattr(torch.nn.functional, "pad")
    homes = [torch.full((*x.shape[:2], x.shape[2] + 8), math.nan).half() for x in tensors(0, *dims)]
    leaves = []
    for home, x in zip(homes, tensors(0, *dims), strict=True):
        home[..., : x.shape[-1]] = x
        leaves.append(home[..., : x.shape[-1]].requires_grad_())
    before = [home.clone() for home in homes]
    variant = {"causal": True, "window_left": 6, "soft_cap": 0.8}
    how = {"deterministic": True, **variant}
    out, _ = attention(*leaves, ends(Q_LENS), ends(KV_LENS), **how)
    assert out.is_contiguous()
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).half()
    found = torch.autograd.grad(out, leaves, dout)
    exact = [x.detach().double().requires_grad_() for x in leaves]
    true = in_float64(*exact, **variant)
    assert (out - true).abs().max() <= NEAR * true.abs().max()
    for mine, right in zip(found, torch.autograd.grad(true, exact, dout.double()), strict=True):
        assert (mine - right).abs().max() <= NEAR * right.abs().max()
    with torch.no_grad():
        inferred, _ = attention(*leaves, ends(Q_LENS), ends(KV_LENS), **how)
    assert torch.allclose(inferred, out, atol=2e-3)
    for home, old in zip(homes, before, strict=True):
        assert torch.equal(home.view(torch.int16), old.view(torch.int16))


def test_a_head_dim_that_no_kernel_holds_is_refused():
    for q, k, v in (
        tensors(0, 264, 264),
        tensors(0, 0, 0),
        (*tensors()[:2], tensors(0, 1, 300)[2]),
    ):
        with pytest.raises(ValueError, match="allowed"):
            attention(q, k, v, ends(Q_LENS), ends(KV_LENS))


def test_frozen_sinks_and_slopes():
    q, k, v = (x.requires_grad_() for x in tensors())
    how = {"sinks": torch.ones(4), "causal": True}
    out, _ = attention(q, k, v, ends(Q_LENS), ends(KV_LENS), **how)
    out.sum().backward()
    assert q.grad.isfinite().all()
    with pytest.raises(ValueError, match=r"^alibi.requires_grad = True, allowed: False"):
        attention(q, k, v, ends(Q_LENS), ends(KV_LENS), alibi=torch.ones(4).requires_grad_())


def test_flash_attn_differentiates_its_variants():
    """The gradients of a batch are those of the same tokens one after another."""
    q, k, v = (x[:40].unflatten(0, (2, 20)).requires_grad_() for x in tensors())
    how = {"window_size": (5, 0), "softcap": 0.8, "causal": True}
    dense = torch.autograd.grad(flash_attn.flash_attn_func(q, k, v, **how).sum(), (q, k, v))
    rows = [x.detach().flatten(0, 1).requires_grad_() for x in (q, k, v)]
    both = (ends((20, 20)), ends((20, 20)), 20, 20)
    ragged = torch.autograd.grad(flash_attn.flash_attn_varlen_func(*rows, *both, **how).sum(), rows)
    for mine, theirs in zip(dense, ragged, strict=True):
        assert torch.equal(mine.flatten(0, 1), theirs)
        assert mine.any()
