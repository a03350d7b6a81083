"""Right implementations of the tenth set: other tiles, sums, shifts and merges."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import torch

from labkernels.measure.strangers.inputs import Call
from labkernels.measure.strangers.right import LOG2_E, grouped, hidden_of


def _p(p, call: Call):
    """P in the format of q, for inputs of 16 bits."""
    return p if call.q.dtype == torch.float32 else p.to(call.q.dtype).float()


def _finite(m):
    return torch.where(m == -math.inf, torch.zeros_like(m), m)


def _divided(call: Call, o, l):
    return (o / torch.where(l > 0, l, torch.ones_like(l))).to(call.q.dtype)


def _base2(call: Call):
    """Return scores in log2 units and V, both in float32."""
    q, k, v = grouped(call, torch.float32)
    s = (q @ k.mT) * float(call.scale * LOG2_E)
    return s.masked_fill(hidden_of(call), -math.inf), v


def _spans(n: int, sizes):
    """Return slices of the keys, of sizes in turn."""
    found, first, i = [], 0, 0
    while first < n:
        found.append(slice(first, min(n, first + sizes[i % len(sizes)])))
        first, i = found[-1].stop, i + 1
    return found


def _online(call: Call, spans, keep: float = 0.0, exp2=torch.exp2, products=None):
    """Return l and o of an online softmax over spans of keys.

    keep: how far the largest score may exceed the running maximum before that moves, in log2.
    products: how P and V are multiplied.
    """
    s, v = _base2(call)
    m = torch.full((*s.shape[:3], 1), -math.inf)
    l, o = torch.zeros_like(m), torch.zeros(*s.shape[:3], v.shape[3])
    for span in spans:
        top = s[..., span].amax(-1, keepdim=True)
        new = torch.where((top > m + keep) | (m == -math.inf), torch.maximum(m, top), m)
        shift = _finite(new)
        p, alpha = exp2(s[..., span] - shift), exp2(m - shift)
        used = _p(p, call)
        part = products(used, v[:, :, span]) if products else used @ v[:, :, span]
        l, o, m = l * alpha + p.sum(-1, keepdim=True), o * alpha + part, new
    return l, o


def uneven_tiles(call: Call) -> torch.Tensor:
    """Tiles of 24, 72 and 8 keys in turn."""
    l, o = _online(call, _spans(call.k.shape[2], (24, 72, 8)))
    return _divided(call, o, l)


def from_the_middle(call: Call) -> torch.Tensor:
    """Tiles of 48 keys from the middle outwards, with a lazy rescale of at most 2^6."""
    spans = _spans(call.k.shape[2], (48,))
    middle = len(spans) // 2
    spans = sorted(spans, key=lambda span: abs(span.start // 48 - middle))
    l, o = _online(call, spans, keep=6.0)
    return _divided(call, o, l)


def _exp2_series(x):
    """Return 2^x by its series about a half, of degree 6: 2e-7 of its value at most."""
    x = x.clamp(min=-140.0)
    whole = torch.floor(x)
    part = x - whole - 0.5
    out = torch.zeros_like(part)
    for i in reversed(range(7)):
        out = out * part + 2**0.5 * math.log(2) ** i / math.factorial(i)
    return torch.where(whole <= -127, torch.zeros_like(x), torch.ldexp(out, whole.int()))


def series(call: Call) -> torch.Tensor:
    """A series for exp2, tiles of 56 keys, and a product with the inverse of l."""
    l, o = _online(call, _spans(call.k.shape[2], (56,)), exp2=_exp2_series)
    return (o * torch.where(l > 0, 1 / l, torch.zeros_like(l))).to(call.q.dtype)


def _by_quads(p, v):
    """Products of 4 keys, added in four chains."""
    n = p.shape[-1]
    chains = []
    for chain in range(4):
        o = torch.zeros(*p.shape[:3], v.shape[3])
        for first in range(4 * chain, n, 16):
            o = o + p[..., first : first + 4] @ v[:, :, first : first + 4]
        chains.append(o)
    return (chains[0] + chains[2]) + (chains[1] + chains[3])


def quads(call: Call) -> torch.Tensor:
    """Products of 4 keys in four chains, tiles of 96 keys."""
    l, o = _online(call, _spans(call.k.shape[2], (96,)), products=_by_quads)
    return _divided(call, o, l)


def stream(call: Call) -> torch.Tensor:
    """Work of equal size for 5 workers over all keys of two requests, merged where they meet."""
    s, v = _base2(call)
    n = s.shape[-1]
    cuts = sorted({0, n, *(round(i * n / 2.5) % n for i in range(1, 5))})
    m, l, o = [], [], []
    for first, last in itertools.pairwise(cuts):
        part = s[..., first:last]
        m.append(part.amax(-1, keepdim=True))
        p = torch.exp2(part - _finite(m[-1]))
        l.append(p.sum(-1, keepdim=True))
        o.append(_p(p, call) @ v[:, :, first:last])
    top = _finite(torch.stack(m).amax(0))
    factors = [torch.exp2(each - top) for each in m]
    total = sum(f * each for f, each in zip(factors, l, strict=True))
    return _divided(call, sum(f * each for f, each in zip(factors, o, strict=True)), total)


def mean_first(call: Call) -> torch.Tensor:
    """The mean key is taken off K, which no softmax sees, and the scores are float32."""
    q, k, v = grouped(call, torch.float32)
    k = k - k.mean(2, keepdim=True)
    s = (q @ k.mT * call.scale).masked_fill(hidden_of(call), -math.inf)
    p = torch.exp(s - _finite(s.amax(-1, keepdim=True)))
    return _divided(call, _p(p, call) @ v, p.sum(-1, keepdim=True))


def bounded(call: Call) -> torch.Tensor:
    """A bound on each row's scores replaces its maximum, less 2^12, with P in float32."""
    s, v = _base2(call)
    q, k, _ = grouped(call, torch.float32)
    longest = k.norm(dim=-1).amax(-1)[..., None, None]
    bound = q.norm(dim=-1, keepdim=True) * longest * float(call.scale * LOG2_E)
    own = _finite(s.amax(-1, keepdim=True))
    p = torch.exp2(s - torch.minimum(bound - 12, own + 24))
    return _divided(call, p @ v, p.sum(-1, keepdim=True))


def in_numpy(call: Call) -> torch.Tensor:
    """NumPy, one head at a time, with einsum and float32 sums over keys in pairs."""
    q, k, v = (x.numpy() for x in grouped(call, torch.float32))
    hidden = hidden_of(call).numpy()
    out = np.zeros((*q.shape[:3], v.shape[3]), np.float32)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            s = np.einsum("md,ld->ml", q[b, h], k[b, h]) * np.float32(call.scale)
            s = np.where(hidden, -np.inf, s)
            p = np.exp(s - s.max(-1, keepdims=True))
            used = _p(torch.from_numpy(p), call).numpy()
            out[b, h] = np.einsum("ml,ld->md", used, v[b, h]) / p.sum(-1, keepdims=True)
    return torch.from_numpy(out).to(call.q.dtype)


def two_parts(call: Call) -> torch.Tensor:
    """P as a high and a low part of the input's format, so that P is nearly float32."""
    s, v = _base2(call)
    p = torch.exp2(s - _finite(s.amax(-1, keepdim=True)))
    high = _p(p, call)
    low = _p(p - high, call)
    return _divided(call, low @ v + high @ v, p.sum(-1, keepdim=True))


def normalised_late(call: Call) -> torch.Tensor:
    """Scores in natural units, P times 1 / l in float32 and then rounded, in tiles of 40 keys."""
    q, k, v = grouped(call, torch.float32)
    s = ((q * call.scale) @ k.mT).masked_fill(hidden_of(call), -math.inf)
    lse = _finite(torch.logsumexp(s, -1, keepdim=True))
    o = torch.zeros(*s.shape[:3], v.shape[3])
    for span in _spans(s.shape[-1], (40,)):
        o = o + _p(torch.exp(s[..., span] - lse), call) @ v[:, :, span]
    return o.to(call.q.dtype)


def hillis(call: Call) -> torch.Tensor:
    """States (m, l, o) of single keys in float32, joined in log steps as a scan joins them."""
    s, v = _base2(call)
    n = s.shape[-1]
    m, l = s[..., None], (s > -math.inf).float()[..., None]
    o = l * v[:, :, None]
    while n > 1:
        half = (n + 1) // 2
        rest = n - half
        a, b = m[..., :rest, :], m[..., half:n, :]
        top = torch.maximum(a, b)
        f, g = torch.exp2(a - _finite(top)), torch.exp2(b - _finite(top))
        l = torch.cat([f * l[..., :rest, :] + g * l[..., half:n, :], l[..., rest:half, :]], -2)
        o = torch.cat([f * o[..., :rest, :] + g * o[..., half:n, :], o[..., rest:half, :]], -2)
        m = torch.cat([top, m[..., rest:half, :]], -2)
        n = half
    return _divided(call, o[..., 0, :], l[..., 0, :])


def sorted_keys(call: Call) -> torch.Tensor:
    """Keys in the order of their mean scores, the largest first, in tiles of 32."""
    s, v = _base2(call)
    order = s.masked_fill(s == -math.inf, 0.0).mean(2).argsort(-1, descending=True)
    s = torch.take_along_dim(s, order[:, :, None], -1)
    v = torch.take_along_dim(v, order[..., None], 2)
    p = torch.exp2(s - _finite(s.amax(-1, keepdim=True)))
    used = _p(p, call)
    o = sum(used[..., span] @ v[:, :, span] for span in _spans(s.shape[-1], (32,)))
    return _divided(call, o, used.sum(-1, keepdim=True))


RIGHT: dict[str, Callable[[Call], torch.Tensor]] = {
    "tiles of 24, 72 and 8 keys": uneven_tiles,
    "from the middle outwards, lag of 6": from_the_middle,
    "exp2 by a series, tiles of 56 keys": series,
    "products of 4 keys in four chains": quads,
    "cut where five workers meet": stream,
    "the mean key taken off": mean_first,
    "a bound for the maximum, P in fp32": bounded,
    "NumPy, head by head": in_numpy,
    "P in two parts": two_parts,
    "a pass for the log-sum-exp, then tiles of 40 keys": normalised_late,
    "single keys joined as in a scan": hillis,
    "keys sorted by their scores, l of rounded P": sorted_keys,
}
"""Name: a function of a call that gives the output in the dtype of q."""
