"""Right implementations of the seventeenth set: other orders, references and exps."""

import math
from collections.abc import Callable

import torch

from labkernels.measure.strangers.inputs import Call
from labkernels.measure.strangers.right import LOG2_E, grouped, hidden_of

_TABLE = torch.exp2(torch.arange(32, dtype=torch.float64) / 32).float()


def _scores(call: Call):
    """Return scores in natural units, and V, in float32."""
    q, k, v = grouped(call, torch.float32)
    return (q @ k.mT * call.scale).masked_fill(hidden_of(call), -math.inf), v


def _as_input(call: Call, p):
    return p if call.q.dtype == torch.float32 else p.to(call.q.dtype).float()


def _finite(m):
    return m.masked_fill(m == -math.inf, 0.0)


def _top(s):
    return _finite(s.amax(-1, keepdim=True))


def _quotient(call: Call, o, l):
    return (o / torch.where(l == 0, torch.ones_like(l), l)).to(call.q.dtype)


def _part(call: Call, s, v, keys):
    """Return the maximum, l and o of some keys."""
    m = s[..., keys].amax(-1, keepdim=True)
    p = torch.exp(s[..., keys] - _finite(m))
    return m, p.sum(-1, keepdim=True), _as_input(call, p) @ v[:, :, keys]


def _both(one, other):
    """Return the maximum, l and o of two parts."""
    m = torch.maximum(one[0], other[0])
    a, b = torch.exp(one[0] - _finite(m)), torch.exp(other[0] - _finite(m))
    return m, a * one[1] + b * other[1], a * one[2] + b * other[2]


def reversed_bits(call: Call) -> torch.Tensor:
    """Tiles of 12 keys come in the order of their numbers with the bits reversed."""
    s, v = _scores(call)
    tiles = torch.arange(s.shape[-1]).split(12)
    bits = max(1, (len(tiles) - 1).bit_length())
    order = sorted(range(len(tiles)), key=lambda i: int(f"{i:0{bits}b}"[::-1], 2))
    found = _part(call, s, v, tiles[order[0]])
    for number in order[1:]:
        found = _both(found, _part(call, s, v, tiles[number]))
    return _quotient(call, found[2], found[1])


def two_passes(call: Call) -> torch.Tensor:
    """The first pass finds the maxima by tiles of 44 keys, and the second adds."""
    s, v = _scores(call)
    tiles = torch.arange(s.shape[-1]).split(44)
    top = _finite(torch.stack([s[..., keys].amax(-1, keepdim=True) for keys in tiles]).amax(0))
    o, l = 0.0, 0.0
    for keys in tiles:
        p = torch.exp(s[..., keys] - top)
        o, l = o + _as_input(call, p) @ v[:, :, keys], l + p.sum(-1, keepdim=True)
    return _quotient(call, o, l)


def tree(call: Call) -> torch.Tensor:
    """Parts of 18 keys are joined in pairs, and the pairs in pairs."""
    s, v = _scores(call)
    found = [_part(call, s, v, keys) for keys in torch.arange(s.shape[-1]).split(18)]
    while len(found) > 1:
        pairs = [_both(*found[i : i + 2]) for i in range(0, len(found) - 1, 2)]
        found = pairs + found[len(pairs) * 2 :]
    return _quotient(call, found[0][2], found[0][1])


def by_a_table(call: Call) -> torch.Tensor:
    """exp2 is a table of 32 numbers for each octave, times a cubic of the rest."""
    s, v = _scores(call)
    x = ((s - _top(s)) * LOG2_E).clamp(min=-126.0)
    whole = torch.floor(32 * x)
    rest = (x - whole / 32) * math.log(2)
    cubic = ((rest / 6 + 0.5) * rest + 1) * rest + 1
    power = torch.floor(whole / 32)
    p = torch.ldexp(_TABLE[(whole - 32 * power).long()] * cubic, power.int())
    p = p.masked_fill(s == -math.inf, 0.0)
    return _quotient(call, _as_input(call, p) @ v, p.sum(-1, keepdim=True))


def normalised_in_logs(call: Call) -> torch.Tensor:
    """The log-sum-exp is known first, and a weight is exp of a score less it."""
    s, v = _scores(call)
    p = torch.exp(s - _finite(torch.logsumexp(s, -1, keepdim=True)))
    return (_as_input(call, p) @ v).to(call.q.dtype)


def compensated(call: Call) -> torch.Tensor:
    """Both sums carry what rounding lost, over tiles of eight keys."""
    s, v = _scores(call)
    p = torch.exp(s - _top(s))
    total = torch.zeros(*s.shape[:3], v.shape[-1] + 1)
    lost = torch.zeros_like(total)
    for keys in torch.arange(s.shape[-1]).split(8):
        o, l = _as_input(call, p[..., keys]) @ v[:, :, keys], p[..., keys].sum(-1, keepdim=True)
        more = torch.cat([o, l], -1) - lost
        new = total + more
        lost, total = (new - total) - more, new
    return _quotient(call, total[..., :-1], total[..., -1:])


def channels_by_16(call: Call) -> torch.Tensor:
    """Products of Q and K are summed over 16 channels at a time, from the last ones on."""
    q, k, v = grouped(call, torch.float32)
    s = torch.zeros(*q.shape[:3], k.shape[2])
    for channels in reversed(torch.arange(q.shape[-1]).split(16)):
        s = s + q[..., channels] @ k[..., channels].mT
    s = (s * call.scale).masked_fill(hidden_of(call), -math.inf)
    p = torch.exp(s - _top(s))
    return _quotient(call, _as_input(call, p) @ v, p.sum(-1, keepdim=True))


def three_streams(call: Call) -> torch.Tensor:
    """Every third key belongs to one stream, and the streams are joined by log-sum-exps."""
    s, v = _scores(call)
    keys = torch.arange(s.shape[-1])
    found = [_part(call, s, v, keys[i::3]) for i in range(min(3, len(keys)))]
    lse = torch.stack([m + l.log() for m, l, _ in found])
    shares = torch.exp(lse - _finite(torch.logsumexp(lse, 0)))
    outs = torch.stack([o / torch.where(l == 0, torch.ones_like(l), l) for _, l, o in found])
    return (shares * outs).sum(0).to(call.q.dtype)


def whole_octaves(call: Call) -> torch.Tensor:
    """Maxima are rounded up to whole powers of two, so that a rescale is exact."""
    s, v = _scores(call)
    s = s * LOG2_E
    m = torch.full((*s.shape[:3], 1), -math.inf)
    o, l = torch.zeros(*s.shape[:3], v.shape[-1]), torch.zeros_like(m)
    for keys in torch.arange(s.shape[-1]).split(36):
        new = torch.maximum(m, torch.ceil(s[..., keys].amax(-1, keepdim=True)))
        p, by = torch.exp2(s[..., keys] - _finite(new)), torch.exp2(m - _finite(new))
        o, l = o * by + _as_input(call, p) @ v[:, :, keys], l * by + p.sum(-1, keepdim=True)
        m = new
    return _quotient(call, o, l)


def fp16_for_bf16(call: Call) -> torch.Tensor:
    """P of a call in 16 bits is in fp16, which has more bits than bf16."""
    s, v = _scores(call)
    p = torch.exp(s - _top(s))
    used = p if call.q.dtype == torch.float32 else p.half().float()
    return _quotient(call, used @ v, p.sum(-1, keepdim=True))


def two_parts_of_p(call: Call) -> torch.Tensor:
    """P is the sum of two numbers in the input's format, each in a product of its own."""
    s, v = _scores(call)
    p = torch.exp(s - _top(s))
    high = _as_input(call, p)
    low = _as_input(call, p - high)
    return _quotient(call, high @ v + low @ v, p.sum(-1, keepdim=True))


RIGHT: dict[str, Callable[[Call], torch.Tensor]] = {
    "tiles by reversed bits": reversed_bits,
    "maxima first, sums in a second pass": two_passes,
    "a tree of joins": tree,
    "exp2 by 32 numbers and a cubic": by_a_table,
    "weights by log-sum-exps known first": normalised_in_logs,
    "sums that carry what was lost": compensated,
    "16 channels at a time from the last": channels_by_16,
    "three streams of keys": three_streams,
    "maxima in whole octaves": whole_octaves,
    "P in fp16 for bf16": fp16_for_bf16,
    "P as a high and a low part": two_parts_of_p,
}
"""Name: a function of a call that gives the output in the dtype of q."""
