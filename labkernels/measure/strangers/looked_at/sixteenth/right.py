"""Right implementations of the sixteenth set: other references, orders, joins and exps."""

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


def _quotient(call: Call, o, l):
    return (o / torch.where(l == 0, torch.ones_like(l), l)).to(call.q.dtype)


def _top(s):
    m = s.amax(-1, keepdim=True)
    return m.masked_fill(m == -math.inf, 0.0)


def _all_keys(call: Call, exp: Callable):
    """Return the output by a function that takes scores less their maximum."""
    s, v = _scores(call)
    p = exp(s - _top(s)).masked_fill(s == -math.inf, 0.0)
    return _quotient(call, _as_input(call, p) @ v, p.sum(-1, keepdim=True))


def _by_references(call: Call, s, v, tiles, references):
    """Return o and l of tiles of keys; the reference of each is at most a few units too small."""
    o, l = torch.zeros(*s.shape[:3], v.shape[-1]), torch.zeros(*s.shape[:3], 1)
    before = references[0]
    for keys, reference in zip(tiles, references, strict=True):
        p, by = torch.exp(s[..., keys] - reference), torch.exp(before - reference)
        l = l * by + p.sum(-1, keepdim=True)
        o = o * by + _as_input(call, p) @ v[:, :, keys]
        before = reference
    return o, l


def one_tile_ahead(call: Call) -> torch.Tensor:
    """The reference of a tile of 28 keys counts the maximum of the next tile as well."""
    s, v = _scores(call)
    tiles = torch.arange(s.shape[-1]).split(28)
    seen = [s[..., : int(keys[-1]) + 29].amax(-1, keepdim=True) for keys in tiles]
    references = [m.masked_fill(m == -math.inf, 0.0) for m in seen]
    return _quotient(call, *_by_references(call, s, v, tiles, references))


def quarters(call: Call) -> torch.Tensor:
    """References are whole quarters two units below the maximum, so that weights reach e^2.25."""
    s, v = _scores(call)
    tiles = torch.arange(s.shape[-1]).split(20)
    seen = [s[..., : int(keys[-1]) + 1].amax(-1, keepdim=True) for keys in tiles]
    whole = [torch.floor(4 * m.masked_fill(m == -math.inf, 0.0)) / 4 - 2 for m in seen]
    return _quotient(call, *_by_references(call, s, v, tiles, whole))


def moved_means(call: Call) -> torch.Tensor:
    """The output is a mean, which each tile of 26 keys moves by its share of the sum."""
    s, v = _scores(call)
    mean, lse = torch.zeros(*s.shape[:3], v.shape[-1]), None
    for keys in torch.arange(s.shape[-1]).split(26):
        m = _top(s[..., keys])
        p = torch.exp(s[..., keys] - m)
        l = p.sum(-1, keepdim=True)
        here = _as_input(call, p) @ v[:, :, keys] / torch.where(l == 0, torch.ones_like(l), l)
        new = m.double() + l.double().log()
        total = new if lse is None else torch.logaddexp(lse, new)
        share = torch.exp(new - total.masked_fill(total == -math.inf, 0.0)).float()
        mean, lse = mean + share * (here - mean), total
    return mean.to(call.q.dtype)


def two_parts_of_q(call: Call) -> torch.Tensor:
    """Q is a part of 12 bits and the rest, and the rest is multiplied first."""
    q, k, v = grouped(call, torch.float32)
    high = (q.view(torch.int32) & ~0xFFF).view(torch.float32)
    s = ((q - high) @ k.mT + high @ k.mT) * call.scale
    s = s.masked_fill(hidden_of(call), -math.inf)
    p = torch.exp(s - _top(s))
    return _quotient(call, _as_input(call, p) @ v, p.sum(-1, keepdim=True))


def by_norms(call: Call) -> torch.Tensor:
    """The keys of each head come in the order of their lengths, in tiles of 36."""
    s, v = _scores(call)
    k = call.k.repeat_interleave(call.group, 1).float()
    order = k.norm(dim=-1).argsort(-1)
    s = s.gather(-1, order[:, :, None].expand(s.shape))
    v = v.gather(2, order[..., None].expand(v.shape))
    tiles = torch.arange(s.shape[-1]).split(36)
    seen = [_top(s[..., : int(keys[-1]) + 1]) for keys in tiles]
    return _quotient(call, *_by_references(call, s, v, tiles, seen))


def uneven_cuts(call: Call) -> torch.Tensor:
    """Four splits end after a seventh, a third and three quarters; log2 sums join them."""
    s, v = _scores(call)
    n, outs, sums = s.shape[-1], [], []
    for keys in torch.arange(n).tensor_split([n // 7, n // 3, 3 * n // 4]):
        if not len(keys):
            continue
        m = _top(s[..., keys]) * LOG2_E
        p = torch.exp2(s[..., keys] * LOG2_E - m)
        l = p.sum(-1, keepdim=True)
        outs.append(_as_input(call, p) @ v[:, :, keys] / torch.where(l == 0, 1.0, l))
        sums.append(m.double() + l.double().log2())
    lse = torch.stack(sums)
    share = torch.exp2(lse - lse.amax(0)).float()
    return ((share * torch.stack(outs)).sum(0) / share.sum(0)).to(call.q.dtype)


def agreed_maximum(call: Call) -> torch.Tensor:
    """Four blocks take tiles of 16 keys in turn, agree on a maximum, and add their sums."""
    s, v = _scores(call)
    m, owner = _top(s), torch.arange(s.shape[-1]) // 16 % 4
    o, l = torch.zeros(()), torch.zeros(())
    for block in range(4):
        keys = (owner == block).nonzero()[:, 0]
        p = torch.exp(s[..., keys] - m)
        o, l = o + _as_input(call, p) @ v[:, :, keys], l + p.sum(-1, keepdim=True)
    return _quotient(call, o, l)


def by_expm1(call: Call) -> torch.Tensor:
    """Exp is one more than expm1 of a half, squared, in float64."""
    return _all_keys(call, lambda x: ((1 + torch.expm1(x.double() / 2)) ** 2).float())


def by_tanh(call: Call) -> torch.Tensor:
    """Exp is a quotient of a tanh in float64, for steps of half a unit, and a power."""

    def exp(x):
        x = x.double().clamp(min=-100.0)
        steps = torch.round(2 * x)
        t = torch.tanh((x - steps / 2) / 2)
        return ((1 + t) / (1 - t) * math.exp(0.5) ** steps).float()

    return _all_keys(call, exp)


def newton(call: Call) -> torch.Tensor:
    """The reciprocal of the denominator comes from a line and four steps of Newton's method."""
    s, v = _scores(call)
    p = torch.exp(s - _top(s))
    l = p.sum(-1, keepdim=True)
    part, power = torch.frexp(torch.where(l == 0, torch.ones_like(l), l))
    guess = 48 / 17 - 32 / 17 * part
    for _ in range(4):
        guess = guess + guess * (1 - part * guess)
    return (_as_input(call, p) @ v * torch.ldexp(guess, -power)).to(call.q.dtype)


RIGHT: dict[str, Callable[[Call], torch.Tensor]] = {
    "a maximum one tile ahead": one_tile_ahead,
    "references in whole quarters": quarters,
    "a mean that each tile moves": moved_means,
    "Q as 12 bits and the rest": two_parts_of_q,
    "keys by their lengths": by_norms,
    "cuts at a seventh, a third and three quarters": uneven_cuts,
    "four blocks agree on a maximum": agreed_maximum,
    "exp by expm1 of a half": by_expm1,
    "exp by a tanh": by_tanh,
    "1 / l by Newton's method": newton,
}
"""Name: a function of a call that gives the output in the dtype of q."""
