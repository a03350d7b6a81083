"""What the bugs of the fifteenth set share: masks, pools, rows, tiles, and merges of splits."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from labkernels.measure.strangers.wrong import Work, attend, masked

TILE, PAGE = 32, 16


def keys(w: Work) -> torch.Tensor:
    """Return the numbers of the keys [L]."""
    return torch.arange(w.k.shape[2])


def heads(w: Work) -> torch.Tensor:
    """Return the numbers of the query heads [Hq, 1, 1]."""
    return torch.arange(w.q.shape[1])[:, None, None]


def noise(x, seed: int = 11) -> torch.Tensor:
    """Return normal numbers like x, of its size."""
    drawn = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
    return drawn.double() * x.double().std()


def unmasked(w: Work) -> torch.Tensor:
    """Return the scores of all keys, with no key hidden."""
    return replace(w, hidden=torch.zeros_like(w.hidden)).scores()


def attended(w: Work, s, v=None, sinks=None) -> torch.Tensor:
    """Return the output of scores and values, with the call's own sinks unless others are given."""
    sinks = w.call.sinks if sinks is None else sinks
    return attend(s, w.v if v is None else v, w.call.q.dtype, sinks=sinks)


def showing(hide: Callable) -> Callable:
    """Return a bug in the mask: hide(work) is True where a row does not see a key."""
    return lambda w: attended(w, masked(unmasked(w), hide(w)))


def scoring(change: Callable) -> Callable:
    """Return a bug in the scores, which change(work) returns."""
    return lambda w: attended(w, change(w))


def reading(change: Callable, of: str = "kv") -> Callable:
    """Return a bug in the keys or values: change(work, K or V) returns what is read for it."""

    def bug(w: Work):
        k = change(w, w.k) if "k" in of else w.k
        v = change(w, w.v) if "v" in of else w.v
        return attended(w, w.scores(k=k), v)

    return bug


def pooled(index: Callable) -> Callable:
    """Return what a request reads of a pool of all requests' tokens, at index(work) [B, L]."""

    def change(w: Work, x):
        b, h, n, d = x.shape
        pool = x.transpose(0, 1).reshape(h, b * n, d)
        return pool[:, index(w).clamp(0, b * n - 1)].transpose(0, 1)

    return change


def tokens(w: Work) -> torch.Tensor:
    """Return the place of each token in the pool of all requests [B, L]."""
    return torch.arange(w.k.shape[0])[:, None] * w.k.shape[2] + keys(w)


def of_kv_heads(w: Work, x) -> torch.Tensor:
    """Return the first of the equal heads of each group [B, Hkv, ...]."""
    return x[:, :: w.call.group]


def for_groups(w: Work, x) -> torch.Tensor:
    """Return KV heads [B, Hkv, ...] repeated for the query heads that share them."""
    return x.repeat_interleave(w.call.group, 1)


def packed(w: Work, x) -> torch.Tensor:
    """Return the rows of a KV head, its query heads side by side: [B, Hkv, M group, ...]."""
    b, h, m, *rest = x.shape
    g = w.call.group
    return x.reshape(b, h // g, g, m, *rest).transpose(2, 3).reshape(b, h // g, m * g, *rest)


def unpacked(w: Work, x) -> torch.Tensor:
    """Return packed rows [B, Hkv, M group, ...] by heads and queries."""
    b, h, r, *rest = x.shape
    g = w.call.group
    return x.reshape(b, h, r // g, g, *rest).transpose(2, 3).reshape(b, h * g, r // g, *rest)


def turned(x, angles) -> torch.Tensor:
    """Return x with halves of its channels rotated by angles [S, D // 2]."""
    half = x.shape[-1] // 2
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, a * sin + b * cos, rest], -1)


def speeds(x, base: float = 1e4) -> torch.Tensor:
    """Return the angle of each pair of channels per place [D // 2]."""
    half = x.shape[-1] // 2
    return base ** (-torch.arange(half, dtype=torch.float64) / max(half, 1))


def kept(w: Work, p) -> torch.Tensor:
    """Return weights rounded to the call's 16 bits; those of fp32 are not rounded."""
    return p if w.call.q.dtype == torch.float32 else p.to(w.call.q.dtype).double()


def finite(m) -> torch.Tensor:
    """Return maxima with 0 where no key is seen."""
    return m.masked_fill(m == -math.inf, 0.0)


def divided(w: Work, o, l) -> torch.Tensor:
    """Return o over l in the format of the call."""
    return (o / torch.where(l == 0, torch.ones_like(l), l)).to(w.call.q.dtype)


def summed(change: Callable) -> Callable:
    """Return a bug in the two sums: change(work, weights) returns o and l."""

    def bug(w: Work):
        p = torch.exp(w.s - finite(w.s.amax(-1, keepdim=True)))
        return divided(w, *change(w, p))

    return bug


@dataclass(frozen=True)
class Tile:
    """One step of the loop: its number, scores, values, weights and the rescale of what was."""

    number: int
    s: torch.Tensor
    v: torch.Tensor
    p: torch.Tensor
    m: torch.Tensor
    rescale: torch.Tensor


def looped(size: int, step: Callable) -> Callable:
    """Return a bug in the loop: step(work, tile, l, o, tiles before) returns l and o."""

    def bug(w: Work):
        m = torch.full((*w.s.shape[:3], 1), -math.inf, dtype=torch.float64)
        l, o = torch.zeros_like(m), torch.zeros(*w.s.shape[:3], w.v.shape[-1]).double()
        before: list[Tile] = []
        for number, some in enumerate(keys(w).split(size)):
            s = w.s[..., some]
            top = torch.maximum(m, s.amax(-1, keepdim=True))
            p, rescale = torch.exp(s - finite(top)), torch.exp(m - finite(top))
            tile = Tile(number, s, w.v[:, :, some], p, m, rescale)
            l, o = step(w, tile, l, o, before)
            before.append(tile)
            m = top
        return divided(w, o, l)

    return bug


def stepped(w: Work, tile: Tile, l, o, before=()) -> tuple[torch.Tensor, torch.Tensor]:
    """Return l and o after a right step."""
    return (
        l * tile.rescale + tile.p.sum(-1, keepdim=True),
        o * tile.rescale + kept(w, tile.p) @ tile.v,
    )


def spans(w: Work, parts: int = 4) -> list[torch.Tensor]:
    """Return the keys of so many splits."""
    return [some for some in keys(w).tensor_split(parts) if len(some)]


def states(w: Work, splits) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-sum-exps [splits, B, Hq, M, 1] and normalised outputs of some keys each."""
    lse, part = [], []
    for some in splits:
        s = w.s[..., some]
        m = s.amax(-1, keepdim=True)
        p = torch.exp(s - finite(m))
        l = p.sum(-1, keepdim=True)
        lse.append(m + torch.log(l))
        part.append(kept(w, p) @ w.v[:, :, some] / torch.where(l == 0, torch.ones_like(l), l))
    return torch.stack(lse), torch.stack(part)


def shares(lse) -> torch.Tensor:
    """Return the weights of splits, whose sum is 1."""
    return torch.softmax(lse, 0)


def merging(change: Callable, cut: Callable = spans) -> Callable:
    """Return a bug in the merge: change(work, log-sum-exps, outputs) returns the output."""
    return lambda w: change(w, *states(w, cut(w))).to(w.call.q.dtype)


def storing(change: Callable) -> Callable:
    """Return a bug in the epilogue: change(work, right output) returns what is stored."""
    return lambda w: change(w, attended(w, w.s))
