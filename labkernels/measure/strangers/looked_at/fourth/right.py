"""Right implementations of the fourth set."""

import math
from collections.abc import Callable

import torch

from labkernels.measure.strangers.inputs import Call
from labkernels.measure.strangers.right import Flash, grouped, hidden_of


def _scores(call: Call, *, root: bool = False):
    """Scores in fp32; root: the square root of the scale is multiplied into q and into k."""
    q, k, v = grouped(call, torch.float32)
    part = call.scale**0.5
    s = (q * part) @ (k * part).mT if root else q @ k.mT * call.scale
    return s.masked_fill(hidden_of(call), -math.inf), v


def _top(s):
    m = s.amax(-1, keepdim=True)
    return m.masked_fill(m == -math.inf, 0.0)


def _divided(o, l, call: Call):
    return (o / torch.where(l == 0, torch.ones_like(l), l)).to(call.q.dtype)


def root_of_the_scale(call: Call) -> torch.Tensor:
    """The scale's root in q and in k."""
    s, v = _scores(call, root=True)
    p = torch.exp(s - _top(s))
    return _divided(p.to(call.q.dtype).float() @ v, p.sum(-1, keepdim=True), call)


def whole_maxima(call: Call) -> torch.Tensor:
    """The maximum rounded up to a whole power of two, so that rescales are exact."""
    s, v = _scores(call)
    s = s * math.log2(math.e)
    p = torch.exp2(s - _top(s).ceil())
    return _divided(p.to(call.q.dtype).float() @ v, p.sum(-1, keepdim=True), call)


def parts_of_exponents(call: Call) -> torch.Tensor:
    """Multiply exp2 of the integer part of the exponent by exp2 of its fraction."""
    s, v = _scores(call)
    x = ((s - _top(s)) * math.log2(math.e)).clamp(min=-126.0)
    whole = x.floor()
    p = torch.exp2(whole) * torch.exp2(x - whole) * (s > -math.inf)
    return _divided(p.to(call.q.dtype).float() @ v, p.sum(-1, keepdim=True), call)


def strided_splits(call: Call, n: int = 4) -> torch.Tensor:
    """Split i has the keys i, i + n, i + 2 n, as warps that take keys in turn."""
    s, v = _scores(call)
    top = _top(s)
    o, l = 0.0, 0.0
    for i in range(min(n, s.shape[-1])):
        part, values = s[..., i::n], v[:, :, i::n]
        m = _top(part)
        p, back = torch.exp(part - m), torch.exp(m - top)
        o = o + back * (p.to(call.q.dtype).float() @ values)
        l = l + back * p.sum(-1, keepdim=True)
    return _divided(o, l, call)


def tree_of_halves(call: Call) -> torch.Tensor:
    """Halves of the keys, halved again down to 8, joined two by two."""
    s, v = _scores(call)

    def joined(first: int, last: int):
        if last - first <= 8:
            part = s[..., first:last]
            m = part.amax(-1, keepdim=True)
            p = torch.exp(part - m.masked_fill(m == -math.inf, 0.0))
            return m, p.sum(-1, keepdim=True), p.to(call.q.dtype).float() @ v[:, :, first:last]
        middle = (first + last) // 2
        (m_a, l_a, o_a), (m_b, l_b, o_b) = joined(first, middle), joined(middle, last)
        m = torch.maximum(m_a, m_b)
        shift = m.masked_fill(m == -math.inf, 0.0)
        a, b = torch.exp(m_a - shift), torch.exp(m_b - shift)
        return m, a * l_a + b * l_b, a * o_a + b * o_b

    _, l, o = joined(0, s.shape[-1])
    return _divided(o, l, call)


RIGHT: dict[str, Callable[[Call], torch.Tensor]] = {
    "root of the scale in q and k": root_of_the_scale,
    "maxima that are whole": whole_maxima,
    "exponents in two parts": parts_of_exponents,
    "splits that take keys in turn": strided_splits,
    "tree of halves": tree_of_halves,
    "flash, 7 splits backward, weights up to 16": Flash(40, "backward", start=4.0, splits=7),
    "flash, blocks of 4, lag of 2": Flash(4, lag=2.0),
}
