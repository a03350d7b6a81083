"""As torch operators, the verbs pass opcheck, and have gradients."""

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


def test_fake_tensors_have_the_shapes_of_real_ones():
    real = labkernels.attention(*tensors())
    with torch._subclasses.FakeTensorMode() as mode:
        fake = labkernels.attention(*(mode.from_tensor(x) for x in tensors()))
    for x, y in zip(real, fake, strict=True):
        assert (x.shape, x.dtype, x.stride()) == (y.shape, y.dtype, y.stride())
