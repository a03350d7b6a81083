"""Right implementations of the thirteenth set: other orders, references, exps, sums."""

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.polynomial import Chebyshev

from labkernels.measure.strangers.inputs import Call
from labkernels.measure.strangers.right import LOG2_E, grouped, hidden_of

State = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _scores(call: Call):
    """Return scores in natural units and V, in float32."""
    q, k, v = grouped(call, torch.float32)
    return (q @ k.mT * call.scale).masked_fill(hidden_of(call), -math.inf), v


def _finite(m):
    return m.masked_fill(m == -math.inf, 0.0)


def _rounded(call: Call, p):
    return p if call.q.dtype == torch.float32 else p.to(call.q.dtype).float()


def _divided(call: Call, o, l):
    return (o / torch.where(l == 0, torch.ones_like(l), l)).to(call.q.dtype)


def _state(call: Call, s, v) -> State:
    m = s.amax(-1, keepdim=True)
    p = torch.exp(s - _finite(m))
    return m, p.sum(-1, keepdim=True), _rounded(call, p) @ v


def _add(call: Call, state: State, s, v) -> State:
    """Return the state of an online softmax with the keys of another tile."""
    m, l, o = state
    m2, l2, o2 = _state(call, s, v)
    top = _finite(torch.maximum(m, m2))
    a, b = torch.exp(m - top), torch.exp(m2 - top)
    return torch.maximum(m, m2), l * a + l2 * b, o * a + o2 * b


def _in_order(call: Call, s, v, tiles) -> State:
    first, *others = tiles
    state = _state(call, s[..., first], v[:, :, first])
    for keys in others:
        state = _add(call, state, s[..., keys], v[:, :, keys])
    return state


def steps_of_37(call: Call) -> torch.Tensor:
    """Keys come in steps of 37, or of the next number without a common divisor, in tiles of 64."""
    s, v = _scores(call)
    n = s.shape[-1]
    step = next(i for i in range(37, 37 + n + 1) if math.gcd(i, n) == 1)
    _, l, o = _in_order(call, s, v, (torch.arange(n) * step % n).split(64))
    return _divided(call, o, l)


def by_tanh(call: Call) -> torch.Tensor:
    """Halves, down to 48 keys, are divided and joined by the tanh of their log-sum-exps."""
    s, v = _scores(call)

    def half(first: int, last: int):
        if last - first <= 48:
            m, l, o = _state(call, s[..., first:last], v[:, :, first:last])
            return m + torch.log(l), o / torch.where(l == 0, torch.ones_like(l), l)
        middle = (first + last) // 2
        (a, o), (b, o2) = half(first, middle), half(middle, last)
        share = torch.where(b == -math.inf, -torch.ones_like(a), torch.tanh((b - a) / 2))
        return torch.logaddexp(a, b), (o * (1 - share) + o2 * (1 + share)) / 2

    return half(0, s.shape[-1])[1].to(call.q.dtype)


def by_chebyshev(call: Call) -> torch.Tensor:
    """The fraction of exp2 is a Chebyshev series of degree 7; tiles have 52 keys."""
    s, v = _scores(call)
    series = Chebyshev.interpolate(lambda x: np.exp2((x + 1) / 2), 7).coef

    def exp(x):
        x = (x * LOG2_E).clamp(min=-120.0)
        whole = x.floor()
        y = 2 * (x - whole) - 1
        a = b = torch.zeros_like(y)
        for c in series[:0:-1]:
            a, b = 2 * y * a - b + float(c), a
        return torch.ldexp(y * a - b + float(series[0]), whole.int())

    m = s.amax(-1, keepdim=True)
    p = exp(s - m).masked_fill(s == -math.inf, 0.0)
    tiles = torch.arange(s.shape[-1]).split(52)
    o = sum(_rounded(call, p[..., keys]) @ v[:, :, keys] for keys in tiles)
    return _divided(call, o, sum(p[..., keys].sum(-1, keepdim=True) for keys in tiles))


def by_a_scan(call: Call) -> torch.Tensor:
    """A scan gives log-sum-exps of all prefixes; a moving mean takes each tile's share of them."""
    s, v = _scores(call)
    lse = torch.logcumsumexp(s, -1)
    o = torch.zeros(*s.shape[:3], v.shape[3])
    for keys in torch.arange(s.shape[-1]).split(24):
        end = lse[..., keys[-1:]]
        old = lse[..., keys[:1] - 1] if keys[0] else torch.full_like(end, -math.inf)
        o = o * torch.exp(old - end) + _rounded(call, torch.exp(s[..., keys] - end)) @ v[:, :, keys]
    return o.to(call.q.dtype)


def channels_apart(call: Call) -> torch.Tensor:
    """Each half of V's channels has a softmax of its own, in tiles of 32 and of 80 keys."""
    s, v = _scores(call)
    halves = []
    for part, size in zip(v.chunk(2, -1), (32, 80), strict=True):
        _, l, o = _in_order(call, s, part, torch.arange(s.shape[-1]).split(size))
        halves.append(_divided(call, o, l))
    return torch.cat(halves, -1)


def _bf16_parts(x) -> list[torch.Tensor]:
    parts = []
    for _ in range(3):
        parts.append(x.to(torch.bfloat16).float())
        x = x - parts[-1]
    return parts


def bf16_parts(call: Call) -> torch.Tensor:
    """Factors are three numbers in bf16 each, whose nine products are summed, small ones first."""

    def product(a, b):
        pairs = [(i, j) for i in range(3) for j in range(3)]
        a, b = _bf16_parts(a), _bf16_parts(b)
        return sum(a[i] @ b[j] for i, j in sorted(pairs, key=sum, reverse=True))

    q, k, v = grouped(call, torch.float32)
    s = (product(q, k.mT) * call.scale).masked_fill(hidden_of(call), -math.inf)
    p = torch.exp(s - s.amax(-1, keepdim=True))
    return _divided(call, product(_rounded(call, p), v), p.sum(-1, keepdim=True))


def two_way_ring(call: Call) -> torch.Tensor:
    """Five devices: the own chunk first, then neighbours from both sides in turn."""
    s, v = _scores(call)
    chunks = torch.arange(s.shape[-1]).tensor_split(5)
    order = [chunks[i % 5] for i in (3, 4, 2, 5, 1) if len(chunks[i % 5])]
    _, l, o = _in_order(call, s, v, order)
    return _divided(call, o, l)


def small_weights(call: Call) -> torch.Tensor:
    """Weights are an eighth at most: exp2 has 3 subtracted; tiles have 72 keys."""
    s, v = _scores(call)
    p = torch.exp2(s * LOG2_E - (s.amax(-1, keepdim=True) * LOG2_E + 3))
    tiles = torch.arange(s.shape[-1]).split(72)
    o = sum(_rounded(call, p[..., keys]) @ v[:, :, keys] for keys in tiles)
    return _divided(call, o, sum(p[..., keys].sum(-1, keepdim=True) for keys in tiles))


def own_key(call: Call) -> torch.Tensor:
    """The score of the last key that a row sees stands for the maximum; P is in float32."""
    s, v = _scores(call)
    m, n = s.shape[-2:]
    last = torch.arange(m) + n - m if call.causal else torch.full((m,), n - 1)
    own = s.gather(-1, last.expand((*s.shape[:2], m))[..., None])
    reference = torch.maximum(own, s.amax(-1, keepdim=True) - 40)
    p = torch.exp(s - reference)
    return _divided(call, p @ v, p.sum(-1, keepdim=True))


def masked_last(call: Call) -> torch.Tensor:
    """Blocks of 12 rows add tiles that all of their rows see first, then those with a mask."""
    s, v = _scores(call)
    outs = []
    for rows in s.split(12, 2):
        tiles = torch.arange(s.shape[-1]).split(16)
        plain = [keys for keys in tiles if (rows[..., keys] > -math.inf).all()]
        others = [keys for keys in tiles if not (rows[..., keys] > -math.inf).all()]
        _, l, o = _in_order(call, rows, v, plain + others)
        outs.append(_divided(call, o, l))
    return torch.cat(outs, 2)


RIGHT: dict[str, Callable[[Call], torch.Tensor]] = {
    "keys in steps of 37": steps_of_37,
    "halves joined by a tanh": by_tanh,
    "exp2 by Chebyshev's polynomials": by_chebyshev,
    "log-sum-exps by a scan": by_a_scan,
    "halves of the channels apart": channels_apart,
    "factors in three parts of bf16": bf16_parts,
    "a ring in both directions": two_way_ring,
    "weights of an eighth at most": small_weights,
    "the own key's score in place of the maximum": own_key,
    "tiles with a mask last": masked_last,
}
"""Name: a function of a call that gives the output in the dtype of q."""
