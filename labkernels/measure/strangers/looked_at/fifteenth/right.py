"""Right implementations of the fifteenth set: other tiles, joins, references and exps."""

import math
from collections.abc import Callable

import torch

from labkernels.measure.strangers.inputs import Call
from labkernels.measure.strangers.right import LOG2_E, grouped, hidden_of


def _scores(call: Call):
    """Return scores in natural units and V, in float32."""
    q, k, v = grouped(call, torch.float32)
    return (q @ k.mT * call.scale).masked_fill(hidden_of(call), -math.inf), v


def _kept(call: Call, p):
    return p if call.q.dtype == torch.float32 else p.to(call.q.dtype).float()


def _stored(call: Call, o, l):
    return (o / torch.where(l == 0, torch.ones_like(l), l)).to(call.q.dtype)


def _state(call: Call, s, v):
    """Return the maximum, l and o of some keys."""
    m = s.amax(-1, keepdim=True)
    p = torch.exp(s - m.masked_fill(m == -math.inf, 0.0))
    return m, p.sum(-1, keepdim=True), _kept(call, p) @ v


def _joined(*states):
    m = torch.stack([state[0] for state in states]).amax(0)
    top = m.masked_fill(m == -math.inf, 0.0)
    by = [torch.exp(state[0] - top) for state in states]
    l, o = (sum(a * state[i] for a, state in zip(by, states, strict=True)) for i in (1, 2))
    return m, l, o


def _states(call: Call, s, v, tiles):
    return [_state(call, s[..., keys], v[:, :, keys]) for keys in tiles if len(keys)]


def _online(call: Call, s, v, tiles):
    state, *others = _states(call, s, v, tiles)
    for other in others:
        state = _joined(state, other)
    return state


def smallest_first(call: Call) -> torch.Tensor:
    """States of 22 keys wait in a heap, and the two with the fewest keys are joined first."""
    s, v = _scores(call)
    tiles = torch.arange(s.shape[-1]).split(22)
    waiting = [(len(t), x) for t, x in zip(tiles, _states(call, s, v, tiles), strict=True)]
    while len(waiting) > 1:
        waiting.sort(key=lambda entry: -entry[0])
        (a, one), (b, other) = waiting.pop(), waiting.pop()
        waiting.append((a + b, _joined(one, other)))
    _, l, o = waiting[0][1]
    return _stored(call, o, l)


def six_squarings(call: Call) -> torch.Tensor:
    """Exp of a 64th by five terms of its series, squared six times, in float64."""
    s, v = _scores(call)
    x = (s - s.amax(-1, keepdim=True)).double().clamp(min=-100) / 64
    p = 1 + x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5 * (1 + x / 6 * (1 + x / 7))))))
    for _ in range(6):
        p = p * p
    p = p.float().masked_fill(s == -math.inf, 0.0)
    return _stored(call, _kept(call, p) @ v, p.sum(-1, keepdim=True))


def fibonacci(call: Call) -> torch.Tensor:
    """Tiles have 3, 5, 8, 13 keys and so on."""
    s, v = _scores(call)
    cuts, size, after = [], 3, 5
    while sum(cuts[-1:]) + size < s.shape[-1]:
        cuts.append(sum(cuts[-1:]) + size)
        size, after = after, size + after
    _, l, o = _online(call, s, v, torch.arange(s.shape[-1]).tensor_split(cuts))
    return _stored(call, o, l)


def cumulative(call: Call) -> torch.Tensor:
    """The denominator is the last of the cumulative log-sum-exps in float64."""
    s, v = _scores(call)
    m = s.amax(-1, keepdim=True)
    lse = torch.logcumsumexp((s - m).double(), -1)[..., -1:]
    p = _kept(call, torch.exp(s - m))
    return (p @ v * torch.exp(-lse).float()).to(call.q.dtype)


def median(call: Call) -> torch.Tensor:
    """The median of a row is the reference, so that weights reach e^6."""
    s, v = _scores(call)
    n = (s > -math.inf).sum(-1, keepdim=True)
    middle = s.sort(-1, descending=True).values.gather(-1, (n - 1) // 2)
    p = torch.exp(s - torch.maximum(middle, s.amax(-1, keepdim=True) - 6))
    return _stored(call, _kept(call, p) @ v, p.sum(-1, keepdim=True))


def _rotation(n: int):
    noise = torch.randn(n, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    return torch.linalg.qr(noise)[0]


def rotated_scores(call: Call) -> torch.Tensor:
    """Q and K are turned by one rotation before their product, which is summed in float64."""
    q, k, v = grouped(call, torch.float64)
    turn = _rotation(q.shape[-1])
    s = ((q @ turn) @ (k @ turn).mT * call.scale).float()
    s = s.masked_fill(hidden_of(call), -math.inf)
    _, l, o = _online(call, s, v.float(), torch.arange(s.shape[-1]).split(60))
    return _stored(call, o, l)


def rotated_values(call: Call) -> torch.Tensor:
    """V is turned by a rotation in float64, and the sum is turned back."""
    s, v = _scores(call)
    turn = _rotation(v.shape[-1])
    _, l, o = _online(call, s, (v.double() @ turn).float(), torch.arange(s.shape[-1]).split(44))
    return _stored(call, o.double() @ turn.T, l)


def bit_by_bit(call: Call) -> torch.Tensor:
    """Exp2 of a fraction is a product of one factor for each of its 26 bits, in float64."""
    s, v = _scores(call)
    x = ((s - s.amax(-1, keepdim=True)).double() * LOG2_E).clamp(min=-140.0)
    whole = x.floor()
    p, rest = torch.ones_like(x), x - whole
    for bit in range(1, 27):
        has = rest >= 2.0**-bit
        p = torch.where(has, p * 2**2.0**-bit, p)
        rest = torch.where(has, rest - 2.0**-bit, rest)
    p = torch.ldexp(p, whole.int()).float().masked_fill(s == -math.inf, 0.0)
    return _stored(call, _kept(call, p) @ v, p.sum(-1, keepdim=True))


def threes(call: Call) -> torch.Tensor:
    """States of 14 keys are joined by threes, and these again."""
    s, v = _scores(call)
    states = _states(call, s, v, torch.arange(s.shape[-1]).split(14))
    while len(states) > 1:
        states = [_joined(*states[i : i + 3]) for i in range(0, len(states), 3)]
    _, l, o = states[0]
    return _stored(call, o, l)


def terms_by_size(call: Call) -> torch.Tensor:
    """The terms of P V are added from the smallest to the largest, 16 channels at a time."""
    s, v = _scores(call)
    p = torch.exp(s - s.amax(-1, keepdim=True))
    out = []
    for part in v.split(16, -1):
        terms = _kept(call, p)[..., None] * part[:, :, None]
        order = terms.abs().argsort(-2)
        out.append(terms.gather(-2, order).sum(-2))
    return _stored(call, torch.cat(out, -1), p.sort(-1).values.sum(-1, keepdim=True))


def buckets(call: Call) -> torch.Tensor:
    """Keys whose weights have one power of two are summed first, the smallest power first."""
    s, v = _scores(call)
    p = torch.exp(s - s.amax(-1, keepdim=True))
    power = torch.frexp(p).exponent
    o, l = torch.zeros(()), torch.zeros(())
    for one in sorted(set(power.flatten().tolist())):
        some = torch.where(power == one, p, 0.0)
        o, l = o + _kept(call, some) @ v, l + some.sum(-1, keepdim=True)
    return _stored(call, o, l)


RIGHT: dict[str, Callable[[Call], torch.Tensor]] = {
    "the smallest states joined first": smallest_first,
    "exp by six squarings": six_squarings,
    "tiles of Fibonacci's numbers": fibonacci,
    "the denominator by logcumsumexp": cumulative,
    "the median for a reference": median,
    "Q and K turned by one rotation": rotated_scores,
    "V turned, the output turned back": rotated_values,
    "exp2 bit by bit": bit_by_bit,
    "states joined by threes": threes,
    "terms of P V by their sizes": terms_by_size,
    "weights in buckets of a power of two": buckets,
}
"""Name: a function of a call that gives the output in the dtype of q."""
