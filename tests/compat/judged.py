"""Random tensors and the lab's bound, for functions of other libraries."""

import math

import torch

from labkernels.testing import assert_attention_close


def normal(*shape, dtype=torch.float16):
    """Return normal numbers, which depend on the shape alone."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def close(out, q, k, v, *, lse=None, lse2=None, **how):
    """Assert that one request's [tokens, heads, head_dim] differs from float64 by rounding.

    lse2 [tokens, heads] in base 2, or lse, natural, is judged with it.
    """
    if lse is not None:
        lse2 = lse / math.log(2)
    if lse2 is not None:
        how["lse2"] = lse2.T[None]
    rows = (x.detach().transpose(0, 1)[None] for x in (out, q, k, v))
    assert_attention_close(*rows, layout="bhsd", named=False, **how)
