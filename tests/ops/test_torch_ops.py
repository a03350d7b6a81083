"""As torch operators, the verbs pass opcheck, and have gradients."""

import math

import pytest
import torch

import labkernels
from tests.kernels.prefill.cases import sums

Q_LENS, KV_LENS = (20, 0, 7), (33, 5, 0)


def tensors(*, dtype=torch.float16, group=2, kv_heads=2, head_dim=64, requires_grad=False):
    generator = torch.Generator().manual_seed(0)

    def normal(tokens, heads):
        x = torch.randn(tokens, heads, head_dim, generator=generator).to(dtype)
        return x.requires_grad_(requires_grad)

    q, k = normal(sum(Q_LENS), group * kv_heads), normal(sum(KV_LENS), kv_heads)
    return q, k, normal(sum(KV_LENS), kv_heads), sums(Q_LENS), sums(KV_LENS)


@pytest.mark.parametrize("deterministic", [False, True], ids=["atomic", "ordered"])
def test_opcheck(deterministic):
    inputs = tensors(requires_grad=True)
    torch.library.opcheck(torch.ops.labkernels.prefill, (*inputs, True, None, deterministic))
    plain = tensors()
    out, lse2 = labkernels.attention(*plain, causal=True)
    arguments = (torch.ones_like(out), *plain[:3], out, lse2, *plain[3:], True, None, True)
    torch.library.opcheck(torch.ops.labkernels.backward, arguments)


def eager(q, k, v, cu_q, cu_k, causal):
    group, outs = q.shape[1] // k.shape[1], []
    for b in range(len(cu_q) - 1):
        rows = q[cu_q[b] : cu_q[b + 1]]
        keys, values = (x[cu_k[b] : cu_k[b + 1]].repeat_interleave(group, 1) for x in (k, v))
        score = torch.einsum("mhd,nhd->hmn", rows, keys) / math.sqrt(q.shape[2])
        m, n = score.shape[1:]
        seen = torch.arange(n)[None] <= torch.arange(m)[:, None] + (n - m if causal else n)
        weight = torch.softmax(score.masked_fill(~seen, -1e30), -1) * seen
        outs.append(torch.einsum("hmn,nhd->mhd", weight, values))
    return torch.cat(outs)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_autograd_goes_through_the_kernels(causal):
    q, k, v, *ends = tensors(dtype=torch.bfloat16, group=3, requires_grad=True)
    weights = torch.randn(q.shape, generator=torch.Generator().manual_seed(5)).bfloat16()
    out, lse2 = labkernels.attention(q, k, v, *ends, causal=causal)
    assert not lse2.requires_grad
    (out * weights).sum().backward()
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    (eager(*wide, *ends, causal) * weights.double()).sum().backward()
    for mine, exact in zip((q, k, v), wide, strict=True):
        # P, dS, out and the gradient each err by 2^-9, relatively
        spread = 8 * 2.0**-9 * exact.grad.abs().max()
        assert ((mine.grad.double() - exact.grad).abs() <= spread).all()
        assert mine.grad.dtype == torch.bfloat16


def test_gradients_whose_rows_no_kernel_could_copy_from():
    q, k, v, *ends = tensors(requires_grad=True)

    def grads(value, given):
        out, _ = labkernels.attention(q, k, v, *ends, deterministic=True)
        return torch.autograd.grad(value(out), (q, k, v), given)

    for value in (torch.sum, lambda out: out.sum(0).square().sum()):
        leaf = labkernels.attention(q, k, v, *ends)[0].detach().requires_grad_()
        (strided,) = torch.autograd.grad(value(leaf), leaf)  # a scalar, or a row, for all rows
        assert 0 in strided.stride()
        whole = grads(lambda out: out, strided.contiguous())
        for found, right in zip(grads(value, None), whole, strict=True):
            assert torch.equal(found, right)
    wide = torch.randn(len(q), 4, 65).half()
    odd = wide[..., 1:].requires_grad_()
    out, _ = labkernels.attention(odd, k, v, *ends)
    same, _ = labkernels.attention(odd.detach().contiguous(), k, v, *ends)
    assert torch.equal(out, same)


def test_fake_tensors_have_the_shapes_of_real_ones():
    real = labkernels.attention(*tensors())
    with torch._subclasses.FakeTensorMode() as mode:
        fake = labkernels.attention(*(mode.from_tensor(x) for x in tensors()))
    for x, y in zip(real, fake, strict=True):
        assert (x.shape, x.dtype, x.stride()) == (y.shape, y.dtype, y.stride())
