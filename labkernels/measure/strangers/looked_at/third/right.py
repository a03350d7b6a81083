"""Right implementations of the third set."""

import math
from collections.abc import Callable

import torch

from labkernels.measure.strangers.inputs import Call
from labkernels.measure.strangers.right import Flash, grouped, hidden_of


def _scores(call: Call, dtype=torch.float32):
    q, k, v = grouped(call, dtype)
    return (q @ k.mT * call.scale).masked_fill(hidden_of(call), -math.inf), v


def _finite(m):
    return m.masked_fill(m == -math.inf, 0.0)


def _weights(s):
    return torch.exp(s - _finite(s.amax(-1, keepdim=True)))


def _divided(o, l, call: Call):
    return (o / torch.where(l == 0, torch.ones_like(l), l)).to(call.q.dtype)


def compensated(call: Call) -> torch.Tensor:
    """Blocks of 16 keys, added up with Kahan's correction."""
    s, v = _scores(call)
    p = _weights(s)
    o, lost = torch.zeros(*s.shape[:3], v.shape[-1]), 0.0
    for first in range(0, s.shape[-1], 16):
        keys = slice(first, first + 16)
        term = p[..., keys].to(call.q.dtype).float() @ v[:, :, keys] - lost
        total = o + term
        lost, o = (total - o) - term, total
    return _divided(o, p.sum(-1, keepdim=True), call)


def halved_exponents(call: Call) -> torch.Tensor:
    """exp(x) as exp(x / 2) squared."""
    s, v = _scores(call)
    p = torch.exp((s - _finite(s.amax(-1, keepdim=True))) / 2) ** 2
    return _divided(p.to(call.q.dtype).float() @ v, p.sum(-1, keepdim=True), call)


def shifted_weights(call: Call) -> torch.Tensor:
    """Weights 2^6 times as large as usual, as kernels in fp8 have them, in the input's format."""
    s, v = _scores(call)
    p = 64 * _weights(s)
    used = p.to(call.q.dtype).float()
    return _divided(used @ v, used.sum(-1, keepdim=True), call)


def two_parts_of_weights(call: Call) -> torch.Tensor:
    """P as hi + lo of the input's format."""
    s, v = _scores(call)
    p = _weights(s)
    high = p.to(call.q.dtype).float()
    low = (p - high).to(call.q.dtype).float()
    return _divided(high @ v + low @ v, p.sum(-1, keepdim=True), call)


def multiplied_by_a_reciprocal(call: Call) -> torch.Tensor:
    """Take keys from both ends in turn, then multiply by 1 / l, from fp16 by two Newton steps."""
    s, v = _scores(call)
    p = _weights(s)
    n = s.shape[-1]
    order = torch.stack([torch.arange(n), torch.arange(n - 1, -1, -1)], 1).flatten()[:n]
    used = p[..., order].to(call.q.dtype).float()
    l = p.sum(-1, keepdim=True)
    guess = (1 / l).half().float() if bool((l < 6e4).all()) else 1 / l
    guess = guess * (2 - l * guess)
    return (used @ v[:, :, order] * (guess * (2 - l * guess))).to(call.q.dtype)


def scaled_keys(call: Call) -> torch.Tensor:
    """The scale multiplied into K in fp32, natural exponentials."""
    q, k, v = grouped(call, torch.float32)
    s = (q @ (k * call.scale).mT).masked_fill(hidden_of(call), -math.inf)
    p = _weights(s)
    return _divided(p.to(call.q.dtype).float() @ v, p.sum(-1, keepdim=True), call)


RIGHT: dict[str, Callable[[Call], torch.Tensor]] = {
    "compensated sums": compensated,
    "exponents halved": halved_exponents,
    "weights times 64": shifted_weights,
    "P as hi and lo": two_parts_of_weights,
    "times a reciprocal": multiplied_by_a_reciprocal,
    "scale in K": scaled_keys,
    "flash, 13 splits, lag of 3": Flash(block=24, splits=13, lag=3.0),
    "flash, blocks of 8 shuffled, weights up to 2": Flash(8, "shuffled", start=1.0),
}
