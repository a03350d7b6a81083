"""Right implementations of the fourteenth set: other tiles, references, exps and sums."""

import math
from collections.abc import Callable

import numpy as np
import torch

from labkernels.measure.strangers.inputs import Call
from labkernels.measure.strangers.right import LOG2_E, grouped, hidden_of


def _scores(call: Call):
    """Return scores in natural units and V, in float32."""
    q, k, v = grouped(call, torch.float32)
    return (q @ k.mT * call.scale).masked_fill(hidden_of(call), -math.inf), v


def _used(call: Call, p):
    return p if call.q.dtype == torch.float32 else p.to(call.q.dtype).float()


def _divided(call: Call, o, l):
    return (o / torch.where(l == 0, torch.ones_like(l), l)).to(call.q.dtype)


def _state(call: Call, s, v, rounded_sum: bool = False):
    """Return the maximum, l and o of some keys."""
    m = s.amax(-1, keepdim=True)
    p = torch.exp(s - m.masked_fill(m == -math.inf, 0.0))
    used = _used(call, p)
    return m, (used if rounded_sum else p).sum(-1, keepdim=True), used @ v


def _joined(one, other):
    m = torch.maximum(one[0], other[0])
    top = m.masked_fill(m == -math.inf, 0.0)
    a, b = torch.exp(one[0] - top), torch.exp(other[0] - top)
    return m, one[1] * a + other[1] * b, one[2] * a + other[2] * b


def _online(call: Call, s, v, tiles, rounded_sum: bool = False):
    state = None
    for keys in tiles:
        new = _state(call, s[..., keys], v[:, :, keys], rounded_sum)
        state = _joined(state, new) if state else new
    return state


def square_roots(call: Call) -> torch.Tensor:
    """Blocks of about sqrt(L) keys are divided, and joined at once by their log-sum-exps."""
    s, v = _scores(call)
    lse, part = [], []
    for keys in torch.arange(s.shape[-1]).split(math.isqrt(s.shape[-1])):
        m, l, o = _state(call, s[..., keys], v[:, :, keys])
        lse.append(m + torch.log(l))
        part.append(o / torch.where(l == 0, torch.ones_like(l), l))
    return (torch.softmax(torch.stack(lse), 0) * torch.stack(part)).sum(0).to(call.q.dtype)


def two_tables(call: Call) -> torch.Tensor:
    """The fraction of exp2 has 7 bits for a table, 7 for another one, and a parabola for others."""
    s, v = _scores(call)
    x = ((s - s.amax(-1, keepdim=True)) * LOG2_E).clamp(min=-140.0)
    whole = x.floor()
    fine = ((x - whole) * 2**14).floor()
    rest = (x - whole - fine / 2**14) * math.log(2)
    high, low = fine.int() >> 7, fine.int() & 127
    table = torch.exp2(torch.arange(128).double() / 128).float()
    second = torch.exp2(torch.arange(128).double() / 2**14).float()
    p = torch.ldexp(table[high] * (second[low] * (1 + rest * (1 + rest / 2))), whole.int())
    p = p.masked_fill(s == -math.inf, 0.0)
    return _divided(call, _used(call, p) @ v, p.sum(-1, keepdim=True))


def signs_apart(call: Call) -> torch.Tensor:
    """The positive values are added in tiles of 44 keys, and the negative ones in tiles of 68."""
    s, v = _scores(call)
    keys = torch.arange(s.shape[-1])
    _, l, o = _online(call, s, v.clamp(min=0), keys.split(44))
    _, l2, o2 = _online(call, s, (-v).clamp(min=0), keys.split(68))
    return (o / l - o2 / l2).to(call.q.dtype)


def second_largest(call: Call) -> torch.Tensor:
    """The second largest score is the reference, so the largest weight exceeds one."""
    s, v = _scores(call)
    top = torch.topk(s, min(2, s.shape[-1]), -1).values
    p = torch.exp(s - torch.maximum(top[..., -1:], top[..., :1] - 7))
    return _divided(call, _used(call, p) @ v, p.sum(-1, keepdim=True))


def doubling(call: Call) -> torch.Tensor:
    """Tiles have 4, 8, 16 keys and so on."""
    s, v = _scores(call)
    n = s.shape[-1]
    cuts = [c for c in (4 * (2**i - 1) for i in range(1, 20)) if c < n]
    _, l, o = _online(call, s, v, torch.arange(n).tensor_split(cuts))
    return _divided(call, o, l)


def powers_taken_off(call: Call) -> torch.Tensor:
    """Channels of V are divided by powers of two near their size, which the output gets back."""
    s, v = _scores(call)
    power = torch.exp2(torch.floor(torch.log2(v.abs().amax(2, keepdim=True).clamp(min=1e-30))))
    _, l, o = _online(call, s, v / power, torch.arange(s.shape[-1]).split(20), rounded_sum=True)
    return _divided(call, o * power, l)


def distances(call: Call) -> torch.Tensor:
    """Scores come from squares of distances between queries and keys, in float64."""
    q, k, v = grouped(call, torch.float64)
    squares = (q**2).sum(-1, keepdim=True) + (k**2).sum(-1)[..., None, :]
    s = (squares - torch.cdist(q, k, compute_mode="donot_use_mm_for_euclid_dist") ** 2) / 2
    s = (s * call.scale).float().masked_fill(hidden_of(call), -math.inf)
    _, l, o = _state(call, s, v.float())
    return _divided(call, o, l)


def log_softmax(call: Call) -> torch.Tensor:
    """P is exp of torch's log_softmax, and its product with V takes 40 keys at a time."""
    s, v = _scores(call)
    p = _used(call, torch.exp(torch.log_softmax(s, -1)))
    tiles = torch.arange(s.shape[-1]).split(40)
    return sum(p[..., keys] @ v[:, :, keys] for keys in tiles).to(call.q.dtype)


def five_rows(call: Call) -> torch.Tensor:
    """Blocks of 5 rows take tiles of 29 keys from the last, and multiply by a reciprocal."""
    s, v = _scores(call)
    tiles = torch.arange(s.shape[-1]).split(29)[::-1]
    states = [_online(call, block, v, tiles, rounded_sum=True) for block in s.split(5, 2)]
    return torch.cat([o * (1 / l) for _, l, o in states], 2).to(call.q.dtype)


def ring_of_rings(call: Call) -> torch.Tensor:
    """Three hosts of two devices: a host joins its own chunks first, then those of the others."""
    s, v = _scores(call)
    chunks = [c for c in torch.arange(s.shape[-1]).tensor_split(6) if len(c)]
    hosts = [_online(call, s, v, chunks[i : i + 2]) for i in range(0, len(chunks), 2)]
    state = hosts[-1]
    for other in hosts[:-1]:
        state = _joined(state, other)
    return _divided(call, state[2], state[1])


def long_double(call: Call) -> torch.Tensor:
    """NumPy's long double for scores and sums, and one rounding to float32 before the last."""
    q, k, v = (x.numpy().astype(np.longdouble) for x in grouped(call, torch.float64))
    s = np.einsum("bhmd,bhnd->bhmn", q, k) * call.scale
    p = np.exp(np.where(hidden_of(call).numpy(), -np.inf, s) - s.max(-1, keepdims=True))
    out = np.einsum("bhmn,bhnd->bhmd", p, v) / p.sum(-1, keepdims=True)
    return torch.from_numpy(out.astype(np.float32)).to(call.q.dtype)


RIGHT: dict[str, Callable[[Call], torch.Tensor]] = {
    "blocks of a square root of the keys": square_roots,
    "exp2 by two tables": two_tables,
    "signs of V apart": signs_apart,
    "the second largest score for a reference": second_largest,
    "tiles that double": doubling,
    "powers of two taken off V": powers_taken_off,
    "scores by squares of distances": distances,
    "exp of log_softmax": log_softmax,
    "rows by five, keys by 29": five_rows,
    "a ring of rings": ring_of_rings,
    "long double in NumPy": long_double,
}
"""Name: a function of a call that gives the output in the dtype of q."""
