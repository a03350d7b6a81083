"""What the bugs of the eleventh set share: loops over tiles, splits, reads of a cache, words."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from labkernels.measure.strangers.wrong import Work, attend, keys_of, right_output

# Names for mistakes that several bugs share. That K was read wrongly is no name for a V read
# wrongly, nor is "K and V"; a name that says "causal mask left out" says that more keys are seen.
KEYS = "wrong page|keys read|^K and V read"
K_ALONE = "(?<!and )K read(?! for)|(?<!and )K of the key|wrong page"
V_ALONE = "(?<!and )V read(?! for)|(?<!and )V of the key|wrong page"
K_LAYOUT, V_LAYOUT = f"{K_ALONE}|(?<!and )K in another", f"{V_ALONE}|(?<!and )V in another"
CHANNELS = "channels?(?! of Q)"
V_MISSING = "(?<!and )V read as 0|denominator with keys|(?<!and )V .*left out"
LOST = r"(?<!mask )(?<!window )(?<!ALiBi )(?<!sinks )(?<!sink )(?<!cap )left out|mask that ends"
SEEN = "hidden keys|keys that the mask hides|causal mask|another mask"
MERGE = "merged|splits"
DENOMINATOR = "denominator"
RESCALE = "o not rescaled|o rescaled|o and l"


def finite(x):
    """Return x with 0 for minus infinity."""
    return x.masked_fill(x == -math.inf, 0.0)


def rounded(p, w: Work):
    """Return P in the format of q, for inputs of 16 bits."""
    dtype = w.call.q.dtype
    return p if dtype == torch.float32 else p.to(dtype).double()


def stored(w: Work, o, l):
    """Return o / l in the format of q, 0 where no key is seen."""
    return (o / torch.where(l == 0, torch.ones_like(l), l)).to(w.call.q.dtype)


def where_it_matters(w: Work, bad, same):
    """Return a bug's output, with the right output's bits in each row that the bug leaves alone.

    same: the output of the same kernel without the bug, which has roundings of its own.
    """
    alike = (bad == same).all(-1, keepdim=True)
    return torch.where(alike, right_output(w), bad)


def weights(w: Work, s=None):
    """Return exp(s - m), its sum, and m, the maximum of each row: [B, Hq, M, L], [B, Hq, M, 1]."""
    s = w.s if s is None else s
    m = s.amax(-1, keepdim=True)
    p = torch.exp(s - finite(m))
    return p, p.sum(-1, keepdim=True), m


def weighed(change: Callable) -> Callable:
    """Return a bug in P or in its sum: change(work, p, l) returns P for o, and the denominator."""

    def once(w: Work, change):
        p, l, _ = weights(w)
        p, l = change(w, p, l) if change else (p, l)
        return stored(w, rounded(p, w) @ w.v, l)

    return lambda w: where_it_matters(w, once(w, change), once(w, None))


@dataclass
class Tile:
    """One step of an online softmax, before it is added; a bug changes what it wants to.

    number, count: of the tiles. keys: its slice. p: weights relative to m, for o; sum: their sums,
    for l. before, m: the running maxima. of_o, of_l: the factors of what was summed before.
    s, v: the scores and the values. kept: what a bug keeps from tile to tile.
    """

    number: int
    count: int
    keys: slice
    s: torch.Tensor
    v: torch.Tensor
    before: torch.Tensor
    m: torch.Tensor
    p: torch.Tensor
    sum: torch.Tensor
    of_o: torch.Tensor
    of_l: torch.Tensor
    kept: dict


def online(w: Work, size: int, change=None, after=None):
    """Return the output of an online softmax over tiles of `size` keys.

    change(tile, work) changes a tile before it is added; after(tile, o, l) returns the two sums.
    """
    m = torch.full((*w.s.shape[:3], 1), -math.inf, dtype=torch.float64)
    l, o = torch.zeros_like(m), torch.zeros(*w.s.shape[:3], w.v.shape[-1]).double()
    firsts, kept = range(0, w.s.shape[-1], size), {}
    for number, first in enumerate(firsts):
        keys = slice(first, first + size)
        s, v = w.s[..., keys], w.v[:, :, keys]
        top = torch.maximum(m, s.amax(-1, keepdim=True))
        p, factor = torch.exp(s - finite(top)), torch.exp(m - finite(top))
        sums = p.sum(-1, keepdim=True)
        tile = Tile(number, len(firsts), keys, s, v, m, top, p, sums, factor, factor.clone(), kept)
        if change:
            change(tile, w)
        o = o * tile.of_o + rounded(tile.p, w) @ tile.v
        l = l * tile.of_l + tile.sum
        if after:
            o, l = after(tile, o, l)
        m = tile.m
    return stored(w, o, l)


def looped(size: int, change=None, after=None) -> Callable:
    """Return a bug in a loop over tiles of `size` keys, as `online` takes it."""
    return lambda w: where_it_matters(w, online(w, size, change, after), online(w, size))


def split(w: Work, size: int):
    """Return log-sum-exps (base e) and outputs of splits of `size` keys: [splits, B, Hq, M, .]."""
    lse, part = [], []
    for first in range(0, w.s.shape[-1], size):
        p, l, m = weights(w, w.s[..., first : first + size])
        lse.append(torch.where(l > 0, finite(m) + l.clamp(min=1e-300).log(), -math.inf))
        o = rounded(p, w) @ w.v[:, :, first : first + size]
        part.append(o / torch.where(l == 0, torch.ones_like(l), l))
    return torch.stack(lse), torch.stack(part)


def share(lse):
    """Return the weights of splits before their sum divides them."""
    return torch.exp(lse - finite(lse.amax(0)))


def joined(size: int, change: Callable) -> Callable:
    """Return a bug in a merge: change(lse, part) returns numerators and weights of the splits."""

    def once(w: Work, change):
        o, l = change(*split(w, size))
        return stored(w, o.sum(0), l.sum(0))

    def right(lse, part):
        return share(lse) * part, share(lse)

    return lambda w: where_it_matters(w, once(w, change), once(w, right))


def by_lse(change: Callable) -> Callable:
    """Return a change of a merge that reads other log-sum-exps: change(lse) returns them."""

    def merge(lse, part):
        given = share(change(lse))
        return given * part, given

    return merge


def from_cache(k: Callable | None = None, v: Callable | None = None) -> Callable:
    """Return a bug in what is read: k(work, K), v(work, V) return it, for all query heads."""

    def bug(w: Work):
        s = w.scores(k=k(w, w.k)) if k else w.s
        sinks = w.call.sinks
        return attend(s, v(w, w.v) if v else w.v, w.call.q.dtype, sinks=sinks)

    return bug


def at(index: Callable) -> Callable:
    """Return a read of other keys: index(work, numbers of the keys) returns their numbers."""

    def read(w: Work, x):
        number = index(w, keys_of(w)).clamp(0, x.shape[2] - 1)
        return x[:, :, number]

    return read


def in_whole(x, size: int, change: Callable):
    """Return x with change applied to its whole blocks of `size` keys [B, H, blocks, size, D]."""
    n = x.shape[2] // size * size
    blocks = x[:, :, :n].unflatten(2, (n // size, size)) if n else None
    return x if blocks is None else torch.cat([change(blocks).flatten(2, 3), x[:, :, n:]], 2)
