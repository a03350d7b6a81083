"""The lab's scaled_dot_product_attention is torch's: masks, shapes, gradients."""

import inspect

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as torchs

from labkernels.compat import scaled_dot_product_attention
from tests.compat.judged import normal


def qkv(tokens, keys, kv_heads=4):
    return (
        normal(2, 4, tokens, 64),
        normal(2, kv_heads, keys, 64),
        normal(2, kv_heads, keys, 64).flip(2),
    )


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("tokens", "keys"), [(12, 12), (12, 20)])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_outputs_and_gradients(is_causal, tokens, keys, kv_heads):
    how = {"is_causal": is_causal, "scale": 0.2, "enable_gqa": kv_heads != 4}
    ours = [x.requires_grad_() for x in qkv(tokens, keys, kv_heads)]
    exact = [x.detach().double().requires_grad_() for x in ours]
    out, wanted = scaled_dot_product_attention(*ours, **how), torchs(*exact, **how)
    # half an fp16 ulp at 2 for out, and as much for P
    assert torch.allclose(out.double(), wanted, atol=2e-3, rtol=0)
    weights = normal(*out.shape)
    for x, loss in ((ours, out * weights), (exact, wanted * weights)):
        x[0].grad = None
        loss.sum().backward()
    for name, found, right in zip("qkv", ours, exact, strict=True):
        # P, dS and the gradient are rounded to fp16, and up to 12 rows of 4 heads are summed
        assert torch.allclose(found.grad.double(), right.grad, atol=2e-2, rtol=0), name


def test_more_queries_than_keys_have_a_mask_from_the_top_left():
    q, k, v = qkv(20, 12)
    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    wanted = torchs(q.double(), k.double(), v.double(), is_causal=True)
    # half an fp16 ulp at 2 for out, and as much for P
    assert torch.allclose(out.double(), wanted, atol=2e-3, rtol=0)
    assert torch.equal(out[:, :, 12:], scaled_dot_product_attention(q, k, v)[:, :, 12:])


def test_signature():
    known = torchs.__doc__.partition("(")[2].partition(")")[0]
    ours = inspect.signature(scaled_dot_product_attention).parameters
    told = [part.split("=")[0].strip() for part in known.replace("*,", "").split(",")]
    assert [name for name in told if name != "*"] == list(ours)


def test_refusals():
    q, k, v = qkv(12, 12, 2)
    with pytest.raises(ValueError, match=r"^key.shape\[1\] = 2, allowed: 4, or enable_gqa=True"):
        scaled_dot_product_attention(q, k, v)
    with pytest.raises(ValueError, match=r"^attn_mask = shape \(12, 12\), allowed: None"):
        scaled_dot_product_attention(q, k, v, torch.zeros(12, 12))
