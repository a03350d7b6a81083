"""Right implementations of the twelfth set: other orders, references, exps and merges."""

import functools
import math
from collections.abc import Callable

import torch

from labkernels.measure.strangers.inputs import Call
from labkernels.measure.strangers.right import LOG2_E, grouped, hidden_of

State = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _logits(call: Call, factor: float = 1.0):
    """Return scores, times a factor, and V in float32."""
    q, k, v = grouped(call, torch.float32)
    s = (q * float(call.scale * factor)) @ k.mT
    return s.masked_fill(hidden_of(call), -math.inf), v


def _seen(m):
    return torch.where(m == -math.inf, torch.zeros_like(m), m)


def _cast(p, call: Call):
    return p if call.q.dtype == torch.float32 else p.to(call.q.dtype).float()


def _end(call: Call, o, l):
    return (o / torch.where(l == 0, torch.ones_like(l), l)).to(call.q.dtype)


def _tiles(n: int, size: int) -> list[torch.Tensor]:
    return list(torch.arange(n).split(size))


def _of(call: Call, s, v, keys) -> State:
    """Return maximum, sum and product with V of some keys."""
    s = s[..., keys]
    m = s.amax(-1, keepdim=True)
    p = torch.exp(s - _seen(m))
    return m, p.sum(-1, keepdim=True), _cast(p, call) @ v[:, :, keys]


def _both(a: State, b: State) -> State:
    m = torch.maximum(a[0], b[0])
    x, y = torch.exp(a[0] - _seen(m)), torch.exp(b[0] - _seen(m))
    return m, a[1] * x + b[1] * y, a[2] * x + b[2] * y


def _joined(call: Call, s, v, cut) -> State:
    """Return the state of tiles joined in their order."""
    return functools.reduce(_both, (_of(call, s, v, keys) for keys in cut))


def _all(call: Call, s, v, cut) -> torch.Tensor:
    """Return the output of tiles joined in their order."""
    _, l, o = _joined(call, s, v, cut)
    return _end(call, o, l)


def atomics(call: Call) -> torch.Tensor:
    """Blocks know the maximum, and add their sums to memory in an order by chance."""
    s, v = _logits(call, LOG2_E)
    p = torch.exp2(s - _seen(s.amax(-1, keepdim=True)))
    cut = _tiles(s.shape[-1], 20)
    order = torch.randperm(len(cut), generator=torch.Generator().manual_seed(12)).tolist()
    o, l = torch.zeros(*s.shape[:3], v.shape[3]), torch.zeros(*s.shape[:3], 1)
    for i in order:
        l += p[..., cut[i]].sum(-1, keepdim=True)
        o += _cast(p[..., cut[i]], call) @ v[:, :, cut[i]]
    return _end(call, o, l)


def pade(call: Call) -> torch.Tensor:
    """Exp is a quotient of two cubics and a power of two; tiles have 44 keys."""
    s, v = _logits(call)
    x = (s - _seen(s.amax(-1, keepdim=True))).clamp(min=-80.0)
    power = torch.round(x * LOG2_E)
    y = (x - power * 0.693359375) + power * 2.12194440e-4  # log 2 in two parts
    even, odd = 120 + 12 * y * y, y * (60 + y * y)
    p = torch.ldexp((even + odd) / (even - odd), power.int()).masked_fill(s == -math.inf, 0.0)
    cut = _tiles(s.shape[-1], 44)
    o = sum(_cast(p[..., keys], call) @ v[:, :, keys] for keys in cut)
    return _end(call, o, sum(p[..., keys].sum(-1, keepdim=True) for keys in cut))


def ring_by_head(call: Call) -> torch.Tensor:
    """Every head enters a ring of four at a place of its own."""
    s, v = _logits(call)
    cut = _tiles(s.shape[-1], -(-s.shape[-1] // 4))
    outs = []
    for h in range(s.shape[1]):
        first = h % len(cut)
        outs.append(_all(call, s[:, [h]], v[:, [h]], cut[first:] + cut[:first]))
    return torch.cat(outs, 1)


def dealt_pages(call: Call) -> torch.Tensor:
    """Pages of 16 are dealt to three workers in turn, each with a state of its own."""
    s, v = _logits(call)
    pages = _tiles(s.shape[-1], 16)
    dealt = [_joined(call, s, v, pages[worker::3]) for worker in range(min(3, len(pages)))]
    _, l, o = functools.reduce(_both, dealt)
    return _end(call, o, l)


def diagonal_first(call: Call) -> torch.Tensor:
    """Blocks of 16 rows go from the tile at their diagonal down to the first one."""
    s, v = _logits(call)
    m, n = s.shape[-2:]
    outs = []
    for rows in _tiles(m, 16):
        last = int(rows[-1]) + n - m + 1 if call.causal else n
        outs.append(_all(call, s[:, :, rows, :last], v, _tiles(last, 48)[::-1]))
    return torch.cat(outs, 2)


def centred_values(call: Call) -> torch.Tensor:
    """The mean of V is taken off before, in float32, and added to the quotient."""
    s, v = _logits(call)
    mean = v.mean(2, keepdim=True)
    p = torch.exp(s - _seen(s.amax(-1, keepdim=True)))
    used = _cast(p, call)
    return (used @ (v - mean) / used.sum(-1, keepdim=True) + mean).to(call.q.dtype)


def added_mask(call: Call) -> torch.Tensor:
    """Eager attention in float32 adds a mask: the smallest number of float32."""
    q, k, v = grouped(call, torch.float32)
    bias = hidden_of(call).float() * torch.finfo(torch.float32).min
    s = torch.einsum("bhmd,bhnd->bhmn", q, k) * call.scale + bias
    return torch.einsum("bhmn,bhnd->bhmd", torch.softmax(s, -1), v).to(call.q.dtype)


def counter(call: Call) -> torch.Tensor:
    """States of tiles of 16 keys are joined as a binary counter carries."""
    s, v = _logits(call)
    held: list[State | None] = []
    for keys in _tiles(s.shape[-1], 16):
        state, place = _of(call, s, v, keys), 0
        while place < len(held) and (other := held[place]) is not None:
            state, held[place] = _both(other, state), None
            place += 1
        held[place : place + 1] = [state]
    _, l, o = functools.reduce(_both, (state for state in held[::-1] if state is not None))
    return _end(call, o, l)


def _online(call: Call, size: int, reference: Callable) -> torch.Tensor:
    """Return an online softmax; reference(old, largest of the tile) is subtracted, None skips."""
    s, v = _logits(call, LOG2_E)
    m = torch.full((*s.shape[:3], 1), -math.inf)
    l, o = torch.zeros_like(m), torch.zeros(*s.shape[:3], v.shape[3])
    for keys in _tiles(s.shape[-1], size):
        new = reference(m, s[..., keys].amax(-1, keepdim=True))
        if new is None:
            continue
        p, old = torch.exp2(s[..., keys] - _seen(new)), torch.exp2(m - _seen(new))
        l, o, m = l * old + p.sum(-1, keepdim=True), o * old + _cast(p, call) @ v[:, :, keys], new
    return _end(call, o, l)


def skipped_tiles(call: Call) -> torch.Tensor:
    """Tiles of 24 keys are skipped if all scores lie 40 powers of two below the maximum."""
    return _online(
        call, 24, lambda m, high: None if (high < m - 40).all() else torch.maximum(m, high)
    )


def moving_reference(call: Call) -> torch.Tensor:
    """The reference is the tile's own maximum, up or down, but falls by 20 at most."""
    return _online(call, 40, lambda m, high: torch.maximum(high, m - 20))


def strided(call: Call) -> torch.Tensor:
    """Dot products have four sums of every fourth channel; exp2 is of degree six."""
    q, k, v = grouped(call, torch.float32)
    some = [q[..., i::4] @ k[..., i::4].mT for i in range(4)]
    s = ((some[0] + some[2]) + (some[1] + some[3])) * float(call.scale * LOG2_E)
    s = s.masked_fill(hidden_of(call), -math.inf)
    x = (s - _seen(s.amax(-1, keepdim=True))).clamp(min=-120.0)
    whole = torch.round(x)
    y, series = (x - whole) * math.log(2), torch.ones_like(x)
    for i in range(6, 0, -1):
        series = 1 + series * y / i
    p = torch.ldexp(series, whole.int()).masked_fill(s == -math.inf, 0.0)
    return _end(call, _cast(p, call) @ v, p.sum(-1, keepdim=True))


def bit_reversed(call: Call) -> torch.Tensor:
    """Keys come in the order of their reversed bits, in tiles of 32."""
    s, v = _logits(call)
    n = s.shape[-1]
    bits = max(1, (n - 1).bit_length())
    order = sorted(range(n), key=lambda j: int(f"{j:0{bits}b}"[::-1], 2))
    return _all(call, s, v, list(torch.tensor(order).split(32)))


RIGHT: dict[str, Callable[[Call], torch.Tensor]] = {
    "sums added in an order by chance": atomics,
    "exp as a quotient of cubics": pade,
    "a ring that each head enters elsewhere": ring_by_head,
    "pages dealt to three workers": dealt_pages,
    "from the diagonal tile down": diagonal_first,
    "V less its mean, which is added back": centred_values,
    "a mask that is added": added_mask,
    "states joined as a counter carries": counter,
    "tiles 40 powers of two down skipped": skipped_tiles,
    "a reference that rises and falls": moving_reference,
    "every fourth channel, exp2 of degree six": strided,
    "keys by their reversed bits": bit_reversed,
}
"""Name: a function of a call that gives the output in the dtype of q."""
