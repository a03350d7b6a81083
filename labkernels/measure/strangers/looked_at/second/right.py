"""Right implementations of the second set."""

import math
from collections.abc import Callable
from typing import Any

import torch

from labkernels.measure.strangers.inputs import Call
from labkernels.measure.strangers.right import grouped, hidden_of


def _scores(call: Call, dtype=torch.float32):
    q, k, v = grouped(call, dtype)
    return (q @ k.mT * call.scale).masked_fill(hidden_of(call), -math.inf), v


def _finite(m):
    return m.masked_fill(m == -math.inf, 0.0)


def _divided(o, l, call: Call):
    return (o / torch.where(l == 0, torch.ones_like(l), l)).to(call.q.dtype)


def two_passes(call: Call) -> torch.Tensor:
    """The maximum first; then exponentials and sums over blocks of 48 keys."""
    s, v = _scores(call)
    m = _finite(s.amax(-1, keepdim=True))
    o, l = 0.0, 0.0
    for first in range(0, s.shape[-1], 48):
        p = torch.exp(s[..., first : first + 48] - m)
        o = o + p.to(call.q.dtype).float() @ v[:, :, first : first + 48]
        l = l + p.sum(-1, keepdim=True)
    return _divided(o, l, call)


def kept_normalised(call: Call) -> torch.Tensor:
    """The output is a mean at every step, moved toward each block of 32 keys by its share."""
    s, v = _scores(call)
    lse = torch.full((*s.shape[:3], 1), -math.inf)
    o = torch.zeros(*s.shape[:3], v.shape[-1])
    for first in range(0, s.shape[-1], 32):
        part = s[..., first : first + 32]
        m = _finite(part.amax(-1, keepdim=True))
        p = torch.exp(part - m)
        l = p.sum(-1, keepdim=True)
        new = torch.logaddexp(lse, m + l.log())
        mean = p.to(call.q.dtype).float() @ v[:, :, first : first + 32]
        gone, come = torch.exp(lse - _finite(new)), torch.exp(m - _finite(new))
        o, lse = gone * o + come * mean, new
    return o.to(call.q.dtype)


def tree_of_splits(call: Call) -> torch.Tensor:
    """Eight splits, joined two by two."""
    s, v = _scores(call)
    parts = []
    for i in range(8):
        keys = slice(i * s.shape[-1] // 8, (i + 1) * s.shape[-1] // 8)
        if keys.start == keys.stop:
            continue
        m = s[..., keys].amax(-1, keepdim=True)
        p = torch.exp(s[..., keys] - _finite(m))
        parts.append((m, p.sum(-1, keepdim=True), p.to(call.q.dtype).float() @ v[:, :, keys]))
    while len(parts) > 1:
        parts = [_joined(*parts[i : i + 2]) for i in range(0, len(parts), 2)]
    return _divided(parts[0][2], parts[0][1], call)


def _joined(a, b=None):
    if b is None:
        return a
    m = torch.maximum(a[0], b[0])
    x, y = (torch.exp(part[0] - _finite(m)) for part in (a, b))
    return m, x * a[1] + y * b[1], x * a[2] + y * b[2]


def rounded_weights_in_float64(call: Call) -> torch.Tensor:
    """Everything in float64 except P, which is rounded to the input's format."""
    s, v = _scores(call, torch.float64)
    p = torch.exp(s - _finite(s.amax(-1, keepdim=True)))
    return _divided(p.to(call.q.dtype).double() @ v, p.sum(-1, keepdim=True), call)


def transposed(call: Call) -> torch.Tensor:
    """S^T = K Q^T, and O^T = V^T P^T, with the sum of the rounded weights."""
    q, k, v = grouped(call, torch.float32)
    s = (k @ q.mT * call.scale).masked_fill(hidden_of(call).mT, -math.inf)
    p = torch.exp(s - _finite(s.amax(-2, keepdim=True))).to(call.q.dtype).float()
    return _divided((v.mT @ p).mT, p.sum(-2, keepdim=True).mT, call)


def channels_in_halves(call: Call) -> torch.Tensor:
    """Scores as the sum of two products over half of the channels, then the output by halves."""
    q, k, v = grouped(call, torch.float32)
    half = q.shape[-1] // 2
    s: Any = sum(q[..., x] @ k[..., x].mT for x in (slice(half), slice(half, None))) * call.scale
    s = s.masked_fill(hidden_of(call), -math.inf)
    p = torch.exp2((s - _finite(s.amax(-1, keepdim=True))) * math.log2(math.e))
    used = p.to(call.q.dtype).float()
    o = torch.cat([used @ part for part in v.chunk(2, -1)], -1)
    return _divided(o, p.sum(-1, keepdim=True), call)


RIGHT: dict[str, Callable[[Call], torch.Tensor]] = {
    "two passes": two_passes,
    "output kept normalised": kept_normalised,
    "tree of splits": tree_of_splits,
    "float64 but for P": rounded_weights_in_float64,
    "transposed": transposed,
    "channels in halves": channels_in_halves,
}
