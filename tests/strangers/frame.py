"""What the bugs of this set share: masks, pools, rotations, tiles, and joins of splits."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from labkernels.measure.strangers.wrong import Work, attend, masked, parts


@dataclass(frozen=True)
class Step:
    """One tile of an online softmax: maxima before and after it, weights, values, and the rescale.

    Shapes: m, top, by [B, Hq, M, 1], p [B, Hq, M, tile], v [B, Hq, tile, Dv].
    """

    number: int
    m: torch.Tensor
    top: torch.Tensor
    p: torch.Tensor
    v: torch.Tensor
    by: torch.Tensor


def kept(w: Work, p):
    """Return weights as the second product takes them."""
    return p if w.call.q.dtype == torch.float32 else p.to(w.call.q.dtype).double()


def over(w: Work, o, l):
    """Return the output: o over l, rounded."""
    return (o / torch.where(l == 0, torch.ones_like(l), l)).to(w.call.q.dtype)


def finite(m):
    """Return maxima with 0 for those of rows that have seen no key."""
    return m.masked_fill(m == -math.inf, 0.0)


def weights(w: Work):
    """Return the weights of all keys relative to their row's maximum."""
    return torch.exp(w.s - finite(w.s.amax(-1, keepdim=True)))


def summed(change: Callable) -> Callable:
    """Return a bug in the two sums: change(work, weights) returns o and l."""

    def bug(w: Work):
        return over(w, *change(w, weights(w)))

    return bug


def looped(tile: int, update: Callable) -> Callable:
    """Return a bug in the loop over tiles: update(work, step, l, o) returns l and o."""

    def bug(w: Work):
        m = torch.full((*w.s.shape[:3], 1), -math.inf, dtype=torch.float64)
        l, o = torch.zeros_like(m), torch.zeros(*w.s.shape[:3], w.v.shape[-1]).double()
        for number, keys in enumerate(torch.arange(w.s.shape[-1]).split(tile)):
            s = w.s[..., keys]
            top = torch.maximum(m, s.amax(-1, keepdim=True))
            p, by = torch.exp(s - finite(top)), torch.exp(m - finite(top))
            l, o = update(w, Step(number, m, top, p, w.v[:, :, keys], by), l, o)
            m = top
        return over(w, o, l)

    return bug


def joined(keys: int, join: Callable) -> Callable:
    """Return a bug in the join of splits: join(work, log-sum-exps, partial outputs)."""

    def bug(w: Work):
        m, l, o = parts(w, keys)
        part = o / torch.where(l == 0, torch.ones_like(l), l)
        return join(w, m + l.clamp(min=1e-300).log(), part).to(w.call.q.dtype)

    return bug


def shares(lse):
    """Return the share of each split in a row's sum."""
    by = torch.exp(lse - finite(lse.amax(0)))
    total = by.sum(0)
    return by / torch.where(total == 0, torch.ones_like(total), total)


def blended(lse, part):
    """Return partial outputs joined by their log-sum-exps."""
    return (shares(lse) * part).sum(0)


def unmasked(w: Work):
    """Return the scores of all keys, the hidden ones too."""
    return replace(w, hidden=torch.zeros_like(w.hidden)).scores()


def seeing(hide: Callable) -> Callable:
    """Return a bug in the mask: hide(work) is True where a query does not see a key."""
    return lambda w: attend(masked(unmasked(w), hide(w)), w.v, w.call.q.dtype)


def reading(k: Callable | None = None, v: Callable | None = None) -> Callable:
    """Return a bug in what is read of K and V: k(work, K) and v(work, V) return it."""

    def bug(w: Work):
        s = w.s if k is None else w.scores(k=k(w, w.k))
        return attend(s, w.v if v is None else v(w, w.v), w.call.q.dtype)

    return bug


def both(change: Callable) -> Callable:
    """Return a bug in what is read of K and of V alike."""
    return reading(change, change)


def of_kv_heads(w: Work, x):
    """Return one head for each KV head."""
    return x[:, :: w.call.group]


def for_queries(w: Work, x):
    """Return each KV head once for each query head of its group."""
    return x.repeat_interleave(w.call.group, 1)


def of_request(x):
    """Return the tensor of the request before."""
    return x.roll(1, 0)


def keys_where(x, where, other):
    """Return x [B, H, L, D] with other keys where `where` [L] is True."""
    return torch.where(where[:, None], other, x)


def in_group(w: Work, x, index):
    """Return for each query head the rows of the head of its group at an index."""
    rows = x.unflatten(1, (-1, w.call.group))
    return rows[:, :, index].flatten(1, 2)


def turned(x, steps):
    """Return x [B, H, S, D] rotated by a number of places [S], the channels in halves."""
    half = x.shape[-1] // 2
    speed = 1e4 ** (-torch.arange(half, dtype=torch.float64) / max(half, 1))
    angle = steps.double()[:, None] * speed
    a, b = x[..., :half], x[..., half : 2 * half]
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([a * cos - b * sin, a * sin + b * cos, x[..., 2 * half :]], -1)


def largest(x, *dims: int):
    """Return the largest magnitude over some dimensions, and 1 where all are 0."""
    top = x.abs().amax(dims, keepdim=True)
    return torch.where(top == 0, torch.ones_like(top), top)
