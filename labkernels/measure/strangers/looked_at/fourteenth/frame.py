"""What the bugs of the fourteenth set share: pages, heads, rows, tiles, and merges of splits."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch.nn.functional import pad

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.wrong import Work, attend, keys_of

PAGE = 16  # keys in a page of a cache
keys = keys_of  # the numbers of the keys: [L]


def rows(w: Work) -> torch.Tensor:
    """Return the numbers of the queries: [M, 1]."""
    return torch.arange(w.q.shape[2])[:, None]


def where_keys(chosen, x, y) -> torch.Tensor:
    """Return x [B, H, L, D] at the chosen keys [L], and y elsewhere."""
    return torch.where(chosen[:, None], x, y)


def of_k(change: Callable) -> Bug:
    """Return a bug in K alone: change(work, K) returns what is read."""
    return lambda w: attend(w.scores(k=change(w, w.k)), w.v, w.call.q.dtype)


def of_v(change: Callable) -> Bug:
    """Return a bug in V alone: change(work, V) returns what is read."""
    return lambda w: attend(w.s, change(w, w.v), w.call.q.dtype)


def of_both(change: Callable) -> Bug:
    """Return a bug in K and V alike: change(work, x) returns what is read of either."""
    return lambda w: attend(w.scores(k=change(w, w.k)), change(w, w.v), w.call.q.dtype)


def of_q(change: Callable) -> Bug:
    """Return a bug in Q: change(work, Q) returns what is read."""
    return lambda w: attend(w.scores(q=change(w, w.q)), w.v, w.call.q.dtype)


def hiding(hide: Callable) -> Bug:
    """Return a bug that hides more keys: hide(work) is True where it does."""
    return lambda w: attend(w.s.masked_fill(hide(w), -math.inf), w.v, w.call.q.dtype)


def showing(hidden: Callable) -> Bug:
    """Return a bug in the mask: hidden(work) is True where a key is hidden."""
    return lambda w: attend(seen(w, hidden(w)), w.v, w.call.q.dtype)


def weighted(weights: Callable) -> Bug:
    """Return a bug that multiplies weights in both sums: weights(work) returns factors."""
    return lambda w: attend(w.s, w.v, w.call.q.dtype, weights=weights(w))


def seen(w: Work, hidden) -> torch.Tensor:
    """Return the scores under another mask [M, L]."""
    return replace(w, hidden=hidden.expand_as(w.hidden)).scores()


def unmasked(w: Work) -> torch.Tensor:
    """Return the scores without a mask."""
    return seen(w, torch.zeros_like(w.hidden))


def paged(x, size: int = PAGE) -> torch.Tensor:
    """Return keys as pages [B, H, pages, size, D]; the last one is filled up with zeros."""
    return pad(x, (0, 0, 0, -x.shape[2] % size)).unflatten(2, (-1, size))


def unpaged(x, n: int) -> torch.Tensor:
    """Return the first n keys of pages: [B, H, n, D]."""
    return x.flatten(2, 3)[:, :, :n]


def kv_heads(w: Work, x) -> torch.Tensor:
    """Return each KV head once: [B, Hkv, L, D]."""
    return x[:, :: w.call.group]


def for_queries(w: Work, x) -> torch.Tensor:
    """Return the KV heads [B, Hkv, L, D] repeated for the query heads that share them."""
    return x.repeat_interleave(w.call.group, 1)


def packed_rows(w: Work, x) -> torch.Tensor:
    """Return the rows of the heads that share a KV head together: [B, Hkv, group * M, D]."""
    return x.unflatten(1, (-1, w.call.group)).flatten(2, 3)


def unpacked_rows(w: Work, x) -> torch.Tensor:
    """Return rows that were packed as [B, Hq, M, D]."""
    return x.unflatten(2, (w.call.group, -1)).flatten(1, 2)


def chunks(x, index: Callable, size: int = 8) -> torch.Tensor:
    """Return x with whole chunks of channels elsewhere: index(numbers) gives the one to read."""
    n = x.shape[-1] // size
    number = torch.arange(n)
    other = index(number)
    other = torch.where(other < n, other, number)
    whole = x[..., : n * size].unflatten(-1, (n, size))[..., other, :].flatten(-2)
    return torch.cat([whole, x[..., n * size :]], -1)


def finite(m) -> torch.Tensor:
    """Return maxima, with 0 for a row that sees no key."""
    return m.masked_fill(m == -math.inf, 0.0)


def weights(s) -> torch.Tensor:
    """Return P relative to each row's maximum."""
    return torch.exp(s - finite(s.amax(-1, keepdim=True)))


def cast(w: Work, x) -> torch.Tensor:
    """Return x rounded to 16 bits, if the call has 16 bits."""
    dtype = w.call.q.dtype
    return x if dtype == torch.float32 else x.to(dtype).double()


def divided(w: Work, o, l) -> torch.Tensor:
    """Return o / l in the call's format."""
    return (o / torch.where(l == 0, torch.ones_like(l), l)).to(w.call.q.dtype)


def summed(sums: Callable) -> Bug:
    """Return a bug in the sums: sums(work, P) returns o and l."""
    return lambda w: divided(w, *sums(w, weights(w.s)))


@dataclass(frozen=True)
class Tile:
    """A tile of keys in the loop of an online softmax, with o and l as they were before it."""

    number: int
    p: torch.Tensor  # rounded as the product takes it
    sum: torch.Tensor
    v: torch.Tensor
    alpha: torch.Tensor  # what o and l must be multiplied by
    l: torch.Tensor
    o: torch.Tensor
    moved: torch.Tensor  # by how much the maximum rose

    def right(self):
        """Return l and o after the tile."""
        return self.l * self.alpha + self.sum, self.o * self.alpha + self.p @ self.v


def looped(size: int, step: Callable) -> Bug:
    """Return a bug in the loop over tiles: step(work, tile) returns l and o after the tile."""

    def bug(w: Work):
        m = torch.full((*w.q.shape[:3], 1), -math.inf, dtype=torch.float64)
        l, o = torch.zeros_like(m), torch.zeros(*w.q.shape[:3], w.v.shape[3]).double()
        for number, first in enumerate(range(0, w.s.shape[-1], size)):
            s, v = w.s[..., first : first + size], w.v[:, :, first : first + size]
            top = torch.maximum(m, s.amax(-1, keepdim=True))
            p = torch.exp(s - finite(top))
            moved = (top - m).nan_to_num(nan=0.0)
            alpha = torch.exp(m - finite(top))
            tile = Tile(number, cast(w, p), p.sum(-1, keepdim=True), v, alpha, l, o, moved)
            (l, o), m = step(w, tile), top
        return divided(w, o, l)

    return bug


def spans(w: Work, count: int) -> list[slice]:
    """Return about equal splits of the keys."""
    n = w.k.shape[2]
    size = -(-n // count)
    return [slice(first, min(first + size, n)) for first in range(0, n, size)]


def states(w: Work, splits) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-sum-exps [splits, B, H, M, 1] and normalised outputs of splits."""
    lse, part = [], []
    for split in splits:
        s = w.s[..., split]
        p = weights(s)
        l = p.sum(-1, keepdim=True)
        lse.append(torch.logsumexp(s, -1, keepdim=True))
        part.append(cast(w, p) @ w.v[:, :, split] / torch.where(l == 0, torch.ones_like(l), l))
    return torch.stack(lse), torch.stack(part)


def shares(lse) -> torch.Tensor:
    """Return the weights of splits, which add up to 1."""
    return torch.softmax(lse, 0).nan_to_num()


def merged(count: int, change: Callable) -> Bug:
    """Return a bug in the merge of splits: change(work, lse, part) returns the output."""
    return lambda w: change(w, *states(w, spans(w, count))).to(w.call.q.dtype)


def turned(x, by, base: float = 1e4) -> torch.Tensor:
    """Return x [..., L, D] turned by places [L] or [L, 1], in halves of the channels."""
    half = x.shape[-1] // 2
    angle = by.double().reshape(-1, 1) * base ** (-torch.arange(half, dtype=torch.float64) / half)
    a, b = x[..., :half], x[..., half : 2 * half]
    first, second = a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()
    return torch.cat([first, second, x[..., 2 * half :]], -1)
