"""Right implementations of the eighteenth set: other orders, references and joins."""

import math
from collections.abc import Callable

import torch

from labkernels.measure.strangers.inputs import Call
from labkernels.measure.strangers.right import LOG2_E, grouped, hidden_of


def _scores(call: Call):
    """Return scores in natural units, and V, in float32."""
    q, k, v = grouped(call, torch.float32)
    return (q @ k.mT * call.scale).masked_fill(hidden_of(call), -math.inf), v


def _as_input(call: Call, p):
    return p if call.q.dtype == torch.float32 else p.to(call.q.dtype).float()


def _finite(m):
    return m.masked_fill(m == -math.inf, 0.0)


def _quotient(call: Call, o, l):
    return (o / torch.where(l == 0, torch.ones_like(l), l)).to(call.q.dtype)


def _sums(call: Call, s, v, m):
    """Return o and l relative to m."""
    p = torch.exp(s - _finite(m))
    return _as_input(call, p) @ v, p.sum(-1, keepdim=True)


def outside_in(call: Call) -> torch.Tensor:
    """An online softmax takes tiles of 20 keys from both ends in turn."""
    s, v = _scores(call)
    tiles = list(torch.arange(s.shape[-1]).split(20))
    m = torch.full((*s.shape[:3], 1), -math.inf)
    o, l = torch.zeros(*s.shape[:3], v.shape[-1]), torch.zeros_like(m)
    while tiles:
        keys = tiles.pop(0 if len(tiles) % 2 else -1)
        top = torch.maximum(m, s[..., keys].amax(-1, keepdim=True))
        by = torch.exp(m - _finite(top))
        more_o, more_l = _sums(call, s[..., keys], v[:, :, keys], top)
        m, o, l = top, o * by + more_o, l * by + more_l
    return _quotient(call, o, l)


def below_the_maximum(call: Call) -> torch.Tensor:
    """Weights are relative to a number three under the maximum, so that they go up to e^3."""
    s, v = _scores(call)
    return _quotient(call, *_sums(call, s, v, s.amax(-1, keepdim=True) - 3.0))


def key_after_key(call: Call) -> torch.Tensor:
    """The product with V is summed key by key."""
    s, v = _scores(call)
    p = torch.exp(s - _finite(s.amax(-1, keepdim=True)))
    used, o = _as_input(call, p), 0.0
    for keys in torch.arange(s.shape[-1]).split(1):
        o = o + used[..., keys] * v[:, :, keys]
    return _quotient(call, o, p.sum(-1, keepdim=True))


def l_by_a_product(call: Call) -> torch.Tensor:
    """The denominator is one more channel of V, of ones, in float32 and of rounded weights."""
    s, v = _scores(call)
    ones = torch.cat([v, torch.ones_like(v[..., :1])], -1)
    p = torch.exp(s - _finite(s.amax(-1, keepdim=True)))
    both = _as_input(call, p) @ ones
    return _quotient(call, both[..., :-1], both[..., -1:])


def unequal_splits(call: Call) -> torch.Tensor:
    """Splits of 1, 2, 4, 8 and so on keys are normalised and joined by shares of the sum."""
    s, v = _scores(call)
    bounds, first = [], 0
    while first < s.shape[-1]:
        last = min(s.shape[-1], 2 * first + 1)
        bounds.append(slice(first, last))
        first = last
    outs, lses = [], []
    for keys in bounds:
        m = s[..., keys].amax(-1, keepdim=True)
        o, l = _sums(call, s[..., keys], v[:, :, keys], m)
        outs.append(o / torch.where(l == 0, torch.ones_like(l), l))
        lses.append(m + torch.log(l))
    share = torch.softmax(torch.stack(lses), 0)
    return (share * torch.stack(outs)).sum(0).to(call.q.dtype)


def one_score_behind(call: Call) -> torch.Tensor:
    """A tile of 28 keys is weighed by the maximum that the tile before left, if that is near."""
    s, v = _scores(call)
    m = torch.full((*s.shape[:3], 1), -math.inf)
    o, l = torch.zeros(*s.shape[:3], v.shape[-1]), torch.zeros_like(m)
    for keys in torch.arange(s.shape[-1]).split(28):
        top = torch.maximum(m, s[..., keys].amax(-1, keepdim=True))
        near = top - m <= 4.0
        used = torch.where(near, m, top)
        by = torch.exp(m - _finite(used))
        more_o, more_l = _sums(call, s[..., keys], v[:, :, keys], used)
        m, o, l = used, o * by + more_o, l * by + more_l
    return _quotient(call, o, l)


def two_warps(call: Call) -> torch.Tensor:
    """Even keys belong to one warp and odd keys to another, and the two are joined at the end."""
    s, v = _scores(call)
    parts = []
    for first in (0, 1):
        some = s[..., first::2]
        if some.shape[-1]:
            m = some.amax(-1, keepdim=True)
            parts.append((m, *_sums(call, some, v[:, :, first::2], m)))
    top = torch.stack([m for m, _, _ in parts]).amax(0)
    by = [torch.exp(m - _finite(top)) for m, _, _ in parts]
    o = sum(f * o for f, (_, o, _) in zip(by, parts, strict=True))
    l = sum(f * l for f, (_, _, l) in zip(by, parts, strict=True))
    return _quotient(call, o, l)


def base_four(call: Call) -> torch.Tensor:
    """Weights are powers of four, and the scale and the log of four are one factor of Q."""
    q, k, v = grouped(call, torch.float32)
    factor = torch.tensor(call.scale * LOG2_E / 2, dtype=torch.float32)
    s = ((q * factor) @ k.mT).masked_fill(hidden_of(call), -math.inf)
    p = torch.exp2(2 * (s - _finite(s.amax(-1, keepdim=True))))
    return _quotient(call, _as_input(call, p) @ v, p.sum(-1, keepdim=True))


def double_sums(call: Call) -> torch.Tensor:
    """Scores are in float32, and weights in the input's format are summed in float64."""
    s, v = _scores(call)
    p = torch.exp(s - _finite(s.amax(-1, keepdim=True)))
    o = _as_input(call, p).double() @ v.double()
    return _quotient(call, o, p.double().sum(-1, keepdim=True))


def normalised_first(call: Call) -> torch.Tensor:
    """Weights are divided by the denominator in float32 and stay in float32."""
    s, v = _scores(call)
    p = torch.exp(s - _finite(s.amax(-1, keepdim=True)))
    l = p.sum(-1, keepdim=True)
    return (p * (1 / torch.where(l == 0, torch.ones_like(l), l)) @ v).to(call.q.dtype)


def about_the_mean_of_v(call: Call) -> torch.Tensor:
    """V is taken about its mean in float32, with weights in float32, and the mean is added."""
    s, v = _scores(call)
    mean = v.mean(2, keepdim=True)
    p = torch.exp(s - _finite(s.amax(-1, keepdim=True)))
    l = p.sum(-1, keepdim=True)
    return (p @ (v - mean) / torch.where(l == 0, torch.ones_like(l), l) + mean).to(call.q.dtype)


RIGHT: dict[str, Callable[[Call], torch.Tensor]] = {
    "tiles from both ends in turn": outside_in,
    "weights up to e^3": below_the_maximum,
    "a product with V key by key": key_after_key,
    "l as one more channel of V": l_by_a_product,
    "splits that double in length": unequal_splits,
    "a maximum one tile behind": one_score_behind,
    "even and odd keys in two warps": two_warps,
    "powers of four": base_four,
    "weights summed in float64": double_sums,
    "P normalised and kept in fp32": normalised_first,
    "V about its mean": about_the_mean_of_v,
}
"""Name: a function of a call that gives the output in the dtype of q."""
