"""Right implementations of the eighth set."""

import math
import warnings
from collections.abc import Callable

import numpy as np
import torch

from labkernels.measure.strangers.inputs import Call
from labkernels.measure.strangers.right import LOG2_E, Flash, grouped, hidden_of


def _scores(call: Call):
    q, k, v = grouped(call, torch.float32)
    return (q @ k.mT * call.scale).masked_fill(hidden_of(call), -math.inf), v


def _top(s):
    m = s.amax(-1, keepdim=True)
    return m.masked_fill(m == -math.inf, 0.0)


def _stored(p, call: Call):
    return p.to(call.q.dtype).float()


def transposed(call: Call) -> torch.Tensor:
    """K by Q and V by P, both transposed, as kernels with few queries have their tiles."""
    q, k, v = grouped(call, torch.float32)
    s = (k @ q.mT * (call.scale * LOG2_E)).masked_fill(hidden_of(call).mT, -math.inf)
    m = s.amax(-2, keepdim=True)
    p = torch.exp2(s - m.masked_fill(m == -math.inf, 0.0))
    l = p.sum(-2, keepdim=True)
    o = v.mT @ _stored(p, call) / torch.where(l == 0, torch.ones_like(l), l)
    return o.mT.to(call.q.dtype)


def unequal_splits(call: Call) -> torch.Tensor:
    """Splits of 16, 48, 112, ... keys, merged two by two by their log-sum-exps in base 2."""
    s, v = _scores(call)
    first, size, total = 0, 16, None
    while first < s.shape[-1]:
        part, there = s[..., first : first + size], v[:, :, first : first + size]
        m = _top(part)
        p = torch.exp(part - m)
        l = p.sum(-1, keepdim=True)
        new = (_stored(p, call) @ there / l.clamp(min=1e-30), (m + l.log()) * LOG2_E)
        total = new if total is None else _two_merged(total, new)
        first, size = first + size, 2 * size + 16
    return total[0].to(call.q.dtype)


def _two_merged(a, b):
    top = torch.maximum(a[1], b[1])
    top = top.masked_fill(top == -math.inf, 0.0)
    x, y = torch.exp2(a[1] - top), torch.exp2(b[1] - top)
    return (x * a[0] + y * b[0]) / (x + y).clamp(min=1e-30), top + torch.log2(x + y)


def sums_in_pairs(call: Call) -> torch.Tensor:
    """Both sums over the keys in a tree of pairs, in float32."""
    s, v = _scores(call)
    p = torch.exp(s - _top(s))
    terms = torch.cat([p[..., None] * v[:, :, None], p[..., None]], -1)
    while terms.shape[-2] > 1:
        odd = terms[..., -1:, :] if terms.shape[-2] % 2 else None
        terms = terms[..., 0 : terms.shape[-2] // 2 * 2 : 2, :] + terms[..., 1::2, :]
        terms = terms if odd is None else torch.cat([terms, odd], -2)
    o, l = terms[..., 0, :-1], terms[..., 0, -1:]
    return (o / torch.where(l == 0, torch.ones_like(l), l)).to(call.q.dtype)


def products_before_the_scale_of_q(call: Call) -> torch.Tensor:
    """q multiplied by the scale in float32 before the product, P in 16 bits, NumPy's sums."""
    q, k, v = (x.numpy() for x in grouped(call, torch.float32))
    s = np.where(
        hidden_of(call).numpy(),
        np.float32(-1e30),
        (q * np.float32(call.scale)) @ np.swapaxes(k, -1, -2),
    )
    p = np.exp(s - s.max(-1, keepdims=True)) * ~hidden_of(call).numpy()
    l = p.sum(-1, keepdims=True)
    used = _stored(torch.from_numpy(p), call).numpy()
    return torch.from_numpy(used @ v / np.where(l == 0, 1, l)).to(call.q.dtype)


def flex(call: Call) -> torch.Tensor:
    """torch's flex_attention, which is not compiled."""
    from torch.nn.attention.flex_attention import flex_attention

    hidden = hidden_of(call)

    def masked(score, b, h, i, j):
        return torch.where(hidden[i, j], -math.inf, score)

    k, v = (x.repeat_interleave(call.group, 1) for x in (call.k, call.v))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        return flex_attention(call.q, k, v, score_mod=masked, scale=call.scale)


RIGHT: dict[str, Callable[[Call], torch.Tensor]] = {
    "products transposed": transposed,
    "unequal splits": unequal_splits,
    "sums in pairs": sums_in_pairs,
    "q scaled in fp32": products_before_the_scale_of_q,
    "torch flex": flex,
    "flash, 5 splits of blocks of 24, l of rounded P": Flash(24, splits=5, rounded_sum=True),
    "flash, blocks of 40, lag of 6, natural": Flash(40, "shuffled", lag=6.0, natural=True),
}
