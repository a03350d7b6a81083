"""What the bugs of the thirteenth set share: words of right names, loops over tiles, and merges."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.wrong import Work, attend, right_output, scored, valued

K, V = r"(?<!and )\bK\b(?! and)", r"(?<!and )\bV\b(?! and)"
BOTH = r"\b(keys?|K and V)"
K_READ, V_READ = (rf"{x} (read(?! as)|of the key)" for x in (K, V))
READ = rf"{BOTH} read(?! as)|wrong page"
REQUEST = rf"K and V of another request|{READ}"
LOST = r"\bkeys? (at the end )?left out|(page|split) left out|another (mask|window)|^window\b"
TWICE = r"(?<!V )counted twice|keys read (again|twice)|(weights of )?keys by a factor"
MASK = r"another mask|mask that|the mask hides|hidden keys"
CAUSAL = rf"causal mask|{MASK}"
SUM = r"denominator|factor for each|common mode|\bl (not )?rescaled"
RESCALE = r"\bo (not )?rescaled|\bo and l\b|small moves"
MERGE = r"splits merged|^splits\b|merged with"
FACTOR = rf"{V} or|{V} by a factor|\bout(put)? by a factor|common mode|factor for each|denominator"
SCALE = r"wrong scale|scores by a factor|\b[QK] by a factor"
NEVER = r"never written|uninitialised"
ROWS = r"another row|out in another|^heads|order of heads"
CHANNELS = r"\bchannels(?! of Q)"
ROTATION = r"RoPE(?! of (V|the))|(?<!V )turned|rotation"


def of_k(change: Callable) -> Bug:
    """Return a bug in K: change(work, K) returns it."""
    return scored(lambda w: w.scores(k=change(w, w.k)))


def of_v(change: Callable) -> Bug:
    """Return a bug in V: change(work, V) returns it."""
    return valued(lambda w: change(w, w.v))


def of_both(change: Callable) -> Bug:
    """Return a bug in K and V alike: change(work, tensor) returns each."""
    return lambda w: attend(w.scores(k=change(w, w.k)), change(w, w.v), w.call.q.dtype)


def seen(m):
    """Return maxima, with 0 where all keys are hidden."""
    return m.masked_fill(m == -math.inf, 0.0)


def weights(s):
    """Return exp(s - max) of each row."""
    return torch.exp(s - seen(s.amax(-1, keepdim=True)))


def cast(w: Work, p):
    """Return P as a kernel rounds it: to the format of 16-bit inputs."""
    return p if w.call.q.dtype == torch.float32 else p.to(w.call.q.dtype).double()


def put(w: Work, o, l):
    """Return the output o / l in the format of q."""
    return (o / torch.where(l == 0, torch.ones_like(l), l)).to(w.call.q.dtype)


def settled(w: Work, bad, fair):
    """Return the bad rows; where they equal those of the same code without its bug, right ones."""
    return torch.where((bad == fair).all(-1, keepdim=True), right_output(w), bad)


def of_sums(change: Callable) -> Bug:
    """Return a bug in the sums: change(work, P, rounded P) returns o and l of all keys."""

    def bug(w: Work):
        p = weights(w.s)
        fair = put(w, cast(w, p) @ w.v, p.sum(-1, keepdim=True))
        return settled(w, put(w, *change(w, p, cast(w, p))), fair)

    return bug


@dataclass(frozen=True)
class Step:
    """A tile of an online softmax: P and its rounding, V, the factor of the maximum that moved.

    moved: by how much the maximum rose, in natural units. before: the factor of the tile before.
    """

    number: int
    p: torch.Tensor
    used: torch.Tensor
    v: torch.Tensor
    factor: torch.Tensor
    before: torch.Tensor
    moved: torch.Tensor

    def added(self, o, l, of_o=None, of_l=None):
        """Return o and l with this tile, rescaled by its factor or by other ones."""
        of_o, of_l = (self.factor if f is None else f for f in (of_o, of_l))
        return o * of_o + self.used @ self.v, l * of_l + self.p.sum(-1, keepdim=True)


def walk(w: Work, tile: int, change: Callable):
    """Return the output of a loop over tiles: change(step, o, l) returns the next o and l."""
    m = torch.full((*w.s.shape[:3], 1), -math.inf, dtype=torch.float64)
    o, l, before = w.v[:, :, :1] * torch.zeros_like(m), torch.zeros_like(m), torch.ones_like(m)
    for number, first in enumerate(range(0, w.s.shape[-1], tile)):
        s = w.s[..., first : first + tile]
        top = torch.maximum(m, s.amax(-1, keepdim=True))
        p, factor = torch.exp(s - seen(top)), torch.exp(m - seen(top))
        moved = torch.where(m == -math.inf, torch.zeros_like(m), top - m)
        v = w.v[:, :, first : first + tile]
        step = Step(number, p, cast(w, p), v, factor, before, moved)
        (o, l), before, m = change(step, o, l), torch.where(m == -math.inf, before, factor), top
    return put(w, o, l)


def looped(tile: int, change: Callable) -> Bug:
    """Return a bug in a loop over tiles of keys, which change(step, o, l) makes."""

    def bug(w: Work):
        return settled(w, walk(w, tile, change), walk(w, tile, Step.added))

    return bug


def states(w: Work, cut: list[slice]):
    """Return log-sum-exps (base e) and divided outputs of slices of the keys, on a first axis."""
    lse, part = [], []
    for keys in cut:
        s = w.s[..., keys]
        p, m = weights(s), s.amax(-1, keepdim=True)
        l = p.sum(-1, keepdim=True)
        lse.append(m + torch.log(l))
        part.append(cast(w, p) @ w.v[:, :, keys] / torch.where(l == 0, torch.ones_like(l), l))
    return torch.stack(lse), torch.stack(part)


def spans(n: int, count: int) -> list[slice]:
    """Return the keys of splits of equal length, the last of which may be shorter."""
    size = -(-n // count)
    return [slice(first, min(first + size, n)) for first in range(0, n, size)]


def shares(lse):
    """Return the weights of splits."""
    return torch.exp(lse - lse.amax(0))


def _merged(w: Work, share, part):
    return put(w, (share * part).sum(0), share.sum(0))


def joined(count: int, change: Callable) -> Bug:
    """Return a bug in the merge of splits: change(work, lse, parts) returns weights and parts."""

    def bug(w: Work):
        lse, part = states(w, spans(w.s.shape[-1], count))
        fair = _merged(w, shares(lse), part)
        return settled(w, _merged(w, *change(w, lse, part)), fair)

    return bug


def unmasked(w: Work):
    """Return the scores of all keys, hidden ones too."""
    return replace(w, hidden=torch.zeros_like(w.hidden)).scores()


def raw(w: Work):
    """Return q k times the scale, without a cap, slopes or a mask."""
    return w.q @ w.k.mT * w.call.scale


def by_kv_head(w: Work, x):
    """Return a tensor of query heads [B, Hq, ...] as [B, Hkv, group, ...]."""
    return x.unflatten(1, (x.shape[1] // w.call.group, w.call.group))


def whole(x, size: int, change: Callable):
    """Return x with change(channels) of its whole chunks of channels; others stay."""
    n = x.shape[-1] // size * size
    return torch.cat([change(x[..., :n]), x[..., n:]], -1) if n else x


def turned(x, places, wrong: Callable = lambda f: f):
    """Return x, whose channels are turned in halves by places [L] times their frequencies."""
    half = x.shape[-1] // 2
    angle = places.double()[:, None] * wrong(1e4 ** (-torch.arange(half).double() / half))
    a, b = x[..., :half], x[..., half : 2 * half]
    new = [a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos(), x[..., 2 * half :]]
    return torch.cat(new, -1)
