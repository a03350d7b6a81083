"""Right implementations of the ninth set: other orders, states, merges and formats."""

import math
from collections.abc import Callable

import torch

from labkernels.measure.strangers.inputs import Call
from labkernels.measure.strangers.right import LOG2_E, grouped, hidden_of


def _rounded(p, call: Call, dtype=None):
    """P in a 16-bit format, or as it is for inputs in float32."""
    return p if call.q.dtype == torch.float32 else p.to(dtype or call.q.dtype).float()


def _scores(call: Call, keys=slice(None), factor: float = 1.0):
    """Scores in float32, times a factor; minus infinity where hidden."""
    q, k, _ = grouped(call, torch.float32)
    s = q @ k[:, :, keys].mT * torch.tensor(call.scale * factor, dtype=torch.float32)
    return s.masked_fill(hidden_of(call)[:, keys], -math.inf)


def _values(call: Call, keys=slice(None)):
    return grouped(call, torch.float32)[2][:, :, keys]


def _finite(m):
    return m.masked_fill(m == -math.inf, 0.0)


def _part(call: Call, keys, dtype=None):
    """Return m (in log2 units), l and the undivided o of some keys."""
    s = _scores(call, keys, LOG2_E)
    m = s.amax(-1, keepdim=True)
    p = torch.exp2(s - _finite(m))
    return m, p.sum(-1, keepdim=True), _rounded(p, call, dtype) @ _values(call, keys)


def _joined(a, b):
    """Return the merge of two states of an online softmax."""
    m = torch.maximum(a[0], b[0])
    of_a, of_b = (torch.exp2(x[0] - _finite(m)) for x in (a, b))
    return m, of_a * a[1] + of_b * b[1], of_a * a[2] + of_b * b[2]


def _output(call: Call, l, o):
    return (o / torch.where(l == 0, torch.ones_like(l), l)).to(call.q.dtype)


def _blocks(call: Call, size: int):
    n = call.k.shape[2]
    return [torch.arange(first, min(first + size, n)) for first in range(0, n, size)]


def tree(call: Call) -> torch.Tensor:
    """States of blocks of 24 keys, joined in pairs as the leaves of a tree."""
    states = [_part(call, keys) for keys in _blocks(call, 24)]
    while len(states) > 1:
        pairs = [_joined(*states[i : i + 2]) for i in range(0, len(states) - 1, 2)]
        states = pairs + ([states[-1]] if len(states) % 2 else [])
    return _output(call, *states[0][1:])


def two_passes(call: Call) -> torch.Tensor:
    """A pass for the log-sum-exp, and a pass whose weights need no division at the end."""
    m, l, _ = (
        torch.stack(x) for x in zip(*(_part(call, b) for b in _blocks(call, 40)), strict=True)
    )
    top = m.amax(0)
    lse = top + torch.log2((torch.exp2(m - _finite(top)) * l).sum(0))
    o = torch.zeros_like(_values(call)[:, :, :1])
    for keys in reversed(_blocks(call, 56)):
        p = torch.exp2(_scores(call, keys, LOG2_E) - _finite(lse))
        o = o + _rounded(p, call) @ _values(call, keys)
    return o.to(call.q.dtype)


def scaled_first(call: Call) -> torch.Tensor:
    """q times scale times log2 e in float32 before the product, products over 16 channels."""
    q, k, v = grouped(call, torch.float32)
    q = q * (call.scale * LOG2_E)
    s = sum(q[..., i : i + 16] @ k[..., i : i + 16].mT for i in range(0, q.shape[3], 16))
    s = s.masked_fill(hidden_of(call), -math.inf)
    p = torch.exp2(s - _finite(s.amax(-1, keepdim=True)))
    o = sum(_rounded(p[..., i : i + 8], call) @ v[:, :, i : i + 8] for i in range(0, k.shape[2], 8))
    return _output(call, p.sum(-1, keepdim=True), o)


def four_warps(call: Call) -> torch.Tensor:
    """Every fourth key in one state, as warps that take keys in turn, P in float32."""
    keys = torch.arange(call.k.shape[2])
    state = None
    for warp in range(4):
        s = _scores(call, keys[keys % 4 == warp], LOG2_E)
        m = s.amax(-1, keepdim=True)
        p = torch.exp2(s - _finite(m))
        new = m, p.sum(-1, keepdim=True), p @ _values(call, keys[keys % 4 == warp])
        state = new if state is None else _joined(state, new)
    return _output(call, *state[1:])


def p_in_fp16(call: Call) -> torch.Tensor:
    """P in fp16 for every 16-bit input, in blocks of 64 from the last key."""
    state = None
    for keys in reversed(_blocks(call, 64)):
        new = _part(call, keys, torch.float16)
        state = new if state is None else _joined(state, new)
    return _output(call, *state[1:])


def whole_maximum(call: Call) -> torch.Tensor:
    """A maximum that moves in whole powers of two, so that each correction is exact."""
    m, l, o = None, 0.0, 0.0
    for keys in _blocks(call, 32):
        s = _scores(call, keys, LOG2_E)
        top = s.amax(-1, keepdim=True).ceil()
        new = top if m is None else torch.maximum(m, top)
        alpha = 0.0 if m is None else torch.exp2(m - _finite(new))
        p = torch.exp2(s - _finite(new))
        l = l * alpha + p.sum(-1, keepdim=True)
        o = o * alpha + _rounded(p, call) @ _values(call, keys)
        m = new
    return _output(call, l, o)


def ring(call: Call) -> torch.Tensor:
    """Outputs of 3 devices, each divided, merged by the sigmoid of their log-sum-exps."""
    n = call.k.shape[2]
    out, lse = None, None
    for i in (1, 2, 0):
        m, l, o = _part(call, torch.arange(i * n // 3, (i + 1) * n // 3))
        new, new_lse = o / l.clamp(min=1e-37), (m + torch.log2(l)) / LOG2_E
        if out is None:
            out, lse = new, new_lse
            continue
        both = torch.logaddexp(lse, new_lse)
        out = out + torch.exp(new_lse - _finite(both)) * (new - out)
        lse = both
    return out.to(call.q.dtype)


def ones_column(call: Call) -> torch.Tensor:
    """The denominator is one more column of V: the sum of rounded weights by the tensor cores."""
    state = None
    for keys in _blocks(call, 80):
        s = _scores(call, keys, LOG2_E)
        m = s.amax(-1, keepdim=True)
        v = torch.nn.functional.pad(_values(call, keys), (0, 1), value=1.0)
        o = _rounded(torch.exp2(s - _finite(m)), call) @ v
        new = m, o[..., -1:], o[..., :-1]
        state = new if state is None else _joined(state, new)
    return _output(call, *state[1:])


def moving_mean(call: Call) -> torch.Tensor:
    """The output is a mean that moves towards each block's mean; nothing is divided at the end."""
    m, l, mean = _part(call, _blocks(call, 48)[0])
    mean = mean / l.clamp(min=1e-37)
    for keys in _blocks(call, 48)[1:]:
        new = _part(call, keys)
        top = torch.maximum(m, new[0])
        old_l, new_l = torch.exp2(m - _finite(top)) * l, torch.exp2(new[0] - _finite(top)) * new[1]
        m, l = top, old_l + new_l
        step = new_l / l.clamp(min=1e-37)
        mean = mean + step * (new[2] / new[1].clamp(min=1e-37) - mean)
    return mean.to(call.q.dtype)


def tile_maximum(call: Call) -> torch.Tensor:
    """One maximum for 16 rows, at most 2^20 above a row's own, with P in float32."""
    s = _scores(call, factor=LOG2_E)
    own = _finite(s.amax(-1, keepdim=True))
    tiles = own.split(16, 2)
    shared = torch.cat([0 * tile + tile.amax(2, keepdim=True) for tile in tiles], 2)
    p = torch.exp2(s - torch.minimum(shared, own + 20))
    return _output(call, p.sum(-1, keepdim=True), p @ _values(call))


def compensated(call: Call) -> torch.Tensor:
    """Key by key from the last, natural exp, with compensated sums."""
    s, v = _scores(call), _values(call)
    p = torch.exp(s - _finite(s.amax(-1, keepdim=True)))
    terms = torch.cat([v, torch.ones_like(v[..., :1])], -1)
    total = torch.zeros(*p.shape[:3], terms.shape[3])
    lost = torch.zeros_like(total)
    for j in reversed(range(p.shape[3])):
        term = p[..., j, None] * terms[:, :, None, j] - lost
        new = total + term
        lost, total = (new - total) - term, new
    return _output(call, total[..., -1:], total[..., :-1])


def tf32(call: Call) -> torch.Tensor:
    """Even blocks of 32 keys, then odd ones, with P rounded to tf32 for 16-bit inputs."""
    blocks = _blocks(call, 32)
    state = None
    for keys in blocks[::2] + blocks[1::2]:
        s = _scores(call, keys, LOG2_E)
        m = s.amax(-1, keepdim=True)
        p = torch.exp2(s - _finite(m))
        if call.q.dtype != torch.float32:
            p_used = ((p.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
        else:
            p_used = p
        new = m, p.sum(-1, keepdim=True), p_used @ _values(call, keys)
        state = new if state is None else _joined(state, new)
    return _output(call, *state[1:])


RIGHT: dict[str, Callable[[Call], torch.Tensor]] = {
    "states of 24 keys joined as a tree": tree,
    "two passes, the second from the last": two_passes,
    "q scaled first, steps of 16 channels and 8 keys": scaled_first,
    "four warps with every fourth key": four_warps,
    "P in fp16, blocks of 64 from the last": p_in_fp16,
    "a maximum in whole powers of two": whole_maximum,
    "a ring of three": ring,
    "the denominator as a column of V": ones_column,
    "a moving mean": moving_mean,
    "one maximum for 16 rows": tile_maximum,
    "key by key from the last, compensated": compensated,
    "even blocks, then odd blocks, P in tf32": tf32,
}
"""Name: a function of a call that gives the output in the dtype of q."""
