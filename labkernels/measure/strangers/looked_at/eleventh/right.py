"""Right implementations of the eleventh set: other orders, owners of keys and merges."""

import math
from collections.abc import Callable

import torch

from labkernels.measure.strangers.inputs import Call
from labkernels.measure.strangers.right import LOG2_E, grouped, hidden_of


def _p(p, call: Call):
    """P in the format of q, for inputs of 16 bits."""
    return p if call.q.dtype == torch.float32 else p.to(call.q.dtype).float()


def _shift(m):
    return m.masked_fill(m == -math.inf, 0.0)


def _out(call: Call, o, l):
    return (o / l.masked_fill(l == 0, 1.0)).to(call.q.dtype)


def _scores(call: Call, factor: float = LOG2_E):
    """Return scores in log2 units and V, in float32."""
    q, k, v = grouped(call, torch.float32)
    s = q @ k.mT * float(call.scale * factor)
    return s.masked_fill(hidden_of(call), -math.inf), v


def _state(call: Call, s, v):
    """Return maximum, sum and product with V of some keys."""
    m = s.amax(-1, keepdim=True)
    p = torch.exp2(s - _shift(m))
    return m, p.sum(-1, keepdim=True), _p(p, call) @ v


def _met(a, b):
    """Return the state of the keys of two states."""
    m = torch.maximum(a[0], b[0])
    f, g = torch.exp2(a[0] - _shift(m)), torch.exp2(b[0] - _shift(m))
    return m, f * a[1] + g * b[1], f * a[2] + g * b[2]


def _blocks(n: int, size: int):
    return [slice(first, min(first + size, n)) for first in range(0, n, size)]


def two_levels(call: Call) -> torch.Tensor:
    """Tiles of 32 keys within super-blocks of 96, which are joined from the last one on."""
    s, v = _scores(call)
    whole = None
    for outer in reversed(_blocks(s.shape[-1], 96)):
        inner = None
        for keys in _blocks(outer.stop - outer.start, 32):
            keys = slice(outer.start + keys.start, outer.start + keys.stop)
            state = _state(call, s[..., keys], v[:, :, keys])
            inner = state if inner is None else _met(inner, state)
        whole = inner if whole is None else _met(whole, inner)
    return _out(call, whole[2], whole[1])


def lanes(call: Call) -> torch.Tensor:
    """Thirty-two lanes that own every 32nd key, joined by a butterfly."""
    s, v = _scores(call)
    states = [_state(call, s[..., i::32], v[:, :, i::32]) for i in range(min(32, s.shape[-1]))]
    while len(states) > 1:
        half = (len(states) + 1) // 2
        low, high = states[:half], states[half:]
        states = [_met(a, b) for a, b in zip(low, high, strict=False)] + low[len(high) :]
    return _out(call, states[0][2], states[0][1])


def sigmoid_ring(call: Call) -> torch.Tensor:
    """Five steps of a ring, each a softmax of its own, joined by a sigmoid of the two lse."""
    s, v = _scores(call)
    out, lse = None, None
    for keys in _blocks(s.shape[-1], -(-s.shape[-1] // 5)):
        m, l, o = _state(call, s[..., keys], v[:, :, keys])
        part = o / l.masked_fill(l == 0, 1.0)
        own = (_shift(m) + torch.log2(l)) / LOG2_E
        if out is None:
            out, lse = part, own
            continue
        gap = (own - lse).nan_to_num(nan=-math.inf)
        out = out - torch.sigmoid(gap) * (out - part)
        lse = torch.logaddexp(lse, own)
    return out.to(call.q.dtype)


def table(call: Call) -> torch.Tensor:
    """exp2 by a table of 64 steps and a cubic between them, tiles of 80 keys."""
    steps = torch.exp2(torch.arange(64, dtype=torch.float64) / 64).float()
    s, v = _scores(call)
    x = (s - _shift(s.amax(-1, keepdim=True))).clamp(min=-120.0)
    whole = torch.floor(x * 64)
    y = (x - whole / 64) * math.log(2)
    number = whole.long()
    p = torch.ldexp(
        steps[number & 63] * (1 + y * (1 + y * (0.5 + y / 6))), (number >> 6).to(torch.int32)
    )
    p = p.masked_fill(s == -math.inf, 0.0)
    tiles = _blocks(s.shape[-1], 80)
    o = sum(_p(p[..., keys], call) @ v[:, :, keys] for keys in tiles)
    return _out(call, o, sum(p[..., keys].sum(-1, keepdim=True) for keys in tiles))


def packed(call: Call) -> torch.Tensor:
    """The query heads of a group as rows of one product, keys from the last, exp in base e."""
    b, hq, m, d = call.q.shape
    hkv = call.k.shape[1]
    rows = call.q.float().reshape(b, hkv, call.group * m, d)
    s = (rows * call.scale) @ call.k.float().mT
    s = s.masked_fill(hidden_of(call).repeat(call.group, 1), -math.inf)
    p = torch.exp(s - _shift(s.amax(-1, keepdim=True)))
    l, o = torch.zeros_like(p[..., :1]), torch.zeros(*p.shape[:3], call.v.shape[3])
    for keys in reversed(_blocks(s.shape[-1], 36)):
        l = l + p[..., keys].sum(-1, keepdim=True)
        o = o + _p(p[..., keys], call) @ call.v.float()[:, :, keys]
    return _out(call, o, l).reshape(b, hq, m, -1)


def float64_sums(call: Call) -> torch.Tensor:
    """Scores and exp in float32; l and o are summed in float64."""
    s, v = _scores(call)
    p = torch.exp2(s - _shift(s.amax(-1, keepdim=True)))
    return _out(call, _p(p, call).double() @ v.double(), p.double().sum(-1, keepdim=True))


def cascade(call: Call) -> torch.Tensor:
    """A shared prefix of half of the keys, then the suffix, joined by their log-sum-exps."""
    s, v = _scores(call)
    half = s.shape[-1] // 2
    levels = [(s[..., :half], v[:, :, :half]), (s[..., half:], v[:, :, half:])]
    lse, parts = [], []
    for level in levels[0 if half else 1 :]:
        m, l, o = _state(call, *level)
        lse.append(m + torch.log2(l.masked_fill(l == 0, 1.0)))
        parts.append(o / l.masked_fill(l == 0, 1.0))
    every = torch.stack(lse)
    given = torch.exp2(every - _shift(every.amax(0)))
    given = given / given.sum(0)
    return (given * torch.stack(parts)).sum(0).to(call.q.dtype)


def largest_apart(call: Call) -> torch.Tensor:
    """The largest key of each row, whose weight is 1, is added last, in float32."""
    s, v = _scores(call)
    m, first = s.max(-1, keepdim=True)
    p = torch.exp2(s - _shift(m)).scatter(-1, first, 0.0)
    own = torch.take_along_dim(v, first, 2)
    return _out(call, _p(p, call) @ v + own, 1 + p.sum(-1, keepdim=True))


def ping_pong(call: Call) -> torch.Tensor:
    """Two accumulators that take tiles of 28 keys in turn, with a lag of 5, joined at the end."""
    s, v = _scores(call)
    shape = s.shape[:3]
    states = [
        [
            torch.full((*shape, 1), -math.inf),
            torch.zeros(*shape, 1),
            torch.zeros(*shape, v.shape[3]),
        ]
        for _ in range(2)
    ]
    for i, keys in enumerate(_blocks(s.shape[-1], 28)):
        m, l, o = states[i % 2]
        top = torch.maximum(m, s[..., keys].amax(-1, keepdim=True))
        new = torch.where((top - _shift(m) > 5) | (m == -math.inf), top, m)
        p, old = torch.exp2(s[..., keys] - _shift(new)), torch.exp2(m - _shift(new))
        states[i % 2] = [
            new,
            l * old + p.sum(-1, keepdim=True),
            o * old + _p(p, call) @ v[:, :, keys],
        ]
    _, l, o = _met(*states)
    return _out(call, o, l)


def channel_chunks(call: Call) -> torch.Tensor:
    """Scores of chunks of 8 channels, the last chunk first, and an inverse of l in float32."""
    q, k, v = grouped(call, torch.float32)
    s = torch.zeros(*q.shape[:3], k.shape[2])
    for first in reversed(range(0, q.shape[3], 8)):
        s = s + q[..., first : first + 8] @ k[..., first : first + 8].mT
    s = (s * float(call.scale)).masked_fill(hidden_of(call), -math.inf)
    p = torch.exp(s - _shift(s.amax(-1, keepdim=True)))
    inverse = 1 / p.sum(-1, keepdim=True)
    return (_p(p, call) @ v * inverse).nan_to_num().to(call.q.dtype)


RIGHT: dict[str, Callable[[Call], torch.Tensor]] = {
    "tiles of 32 in super-blocks of 96, from the last": two_levels,
    "32 lanes and a butterfly": lanes,
    "a ring joined by sigmoids": sigmoid_ring,
    "exp2 by a table and a cubic": table,
    "a group's heads as rows, keys from the last": packed,
    "sums in float64": float64_sums,
    "a prefix and a suffix": cascade,
    "the largest key apart": largest_apart,
    "two accumulators in turn, lag of 5": ping_pong,
    "scores in chunks of 8 channels": channel_chunks,
}
"""Name: a function of a call that gives the output in the dtype of q."""
