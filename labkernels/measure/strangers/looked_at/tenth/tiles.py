"""A kernel's parts for the bugs of the tenth set: rows in order, an online softmax, names."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from labkernels.measure.strangers.wrong import Work, right_output

# Names that send a reader to the right line, for mistakes that several bugs share.
KEYS = "wrong page|keys read|K and V read"
V_KEYS = "(?<!and )V read(?! for K)|V of the key|V in another|wrong page"
K_KEYS = "K read(?! for V)|K of the key|K in another|wrong page"
# "Causal mask left out", "window left out" and their like say that more keys are seen, not fewer.
LOST = "(?<!mask )(?<!window )(?<!ALiBi )(?<!sink )(?<!cap )left out|read as 0|mask that ends"
TWICE = "twice|read again"
SHOWN = "hidden keys|keys that the mask hides|causal mask|another mask"
MERGE = "merged|splits"
DIVISOR = "denominator"
FACTOR = "factor|denominator|times"
RESCALE = "o not rescaled|o rescaled|o and l|small moves"


def finite(x):
    """Return x with 0 for minus infinity."""
    return x.masked_fill(x == -math.inf, 0.0)


def effective(w: Work, bad, same):
    """Return a bug's output, with the right output's bits in rows that the mistake leaves alone.

    same: the output of the same kernel without the mistake, whose roundings are others than those
    of the right output.
    """
    alike = (bad == same).all(-1, keepdim=True)
    return torch.where(alike, right_output(w), bad)


def used(p, w: Work):
    """Return P in the format of q, for inputs of 16 bits."""
    dtype = w.call.q.dtype
    return p if dtype == torch.float32 else p.to(dtype).double()


def divided(w: Work, o, l):
    """Return o / l in the format of q, and 0 where no key is seen."""
    return (o / torch.where(l == 0, torch.ones_like(l), l)).to(w.call.q.dtype)


def softmax_parts(w: Work, s=None):
    """Return P relative to each row's maximum, its sum, and the maximum."""
    s = w.s if s is None else s
    m = s.amax(-1, keepdim=True)
    p = torch.exp(s - finite(m))
    return p, p.sum(-1, keepdim=True), m


def of_heads(w: Work, x):
    """Return a tensor of KV heads in float64, repeated for the query heads that share them."""
    return x.double().repeat_interleave(w.call.group, 1)


def shown(w: Work, hidden):
    """Return the scores under another mask; hidden may have dimensions for requests and heads."""
    full = replace(w, hidden=torch.zeros_like(w.hidden)).scores()
    return full.masked_fill(hidden, -math.inf)


def rows(x):
    """Return x [B, H, M, ...] as rows [B, M * H, ...], the heads of a token side by side."""
    return x.transpose(1, 2).flatten(1, 2)


def heads(x, like):
    """Return rows [B, M * H, ...] as [B, H, M, ...] of another tensor."""
    b, h, m = like.shape[:3]
    return x.reshape(b, m, h, *x.shape[2:]).transpose(1, 2)


def swapped_pairs(n: int, by: int = 1):
    """Return 0 to n - 1 with numbers that differ in one bit exchanged, where both exist."""
    index = torch.arange(n)
    return torch.where((index ^ by) < n, index ^ by, index)


@dataclass
class Step:
    """A tile of an online softmax: its number, how many there are, and how far the maximum moved.

    alpha: the factor [B, H, M, 1] that the move asks for.
    """

    i: int
    count: int
    alpha: torch.Tensor
    move: torch.Tensor


def right_factor(step: Step):
    """Return the factor that a rescale needs."""
    return step.alpha


def online(
    size: int,
    *,
    of_o: Callable = right_factor,
    of_l: Callable = right_factor,
    adds: Callable = lambda step, sums: sums,
    kept: Callable = lambda step, o: o,
) -> Callable:
    """Return a kernel that goes through tiles of `size` keys, with a mistake in one of its steps.

    of_o, of_l: the factors on o and l. adds: what a tile's weights add to l. kept: what is kept of
    o after each tile.
    """

    def bug(w: Work):
        bad = _through(w, size, of_o, of_l, adds, kept)
        return effective(w, bad, _through(w, size, right_factor, right_factor, _sums, _all))

    return bug


def _sums(step: Step, sums):
    return sums


def _all(step: Step, o):
    return o


def _through(w: Work, size: int, of_o, of_l, adds, kept):
    """Return the output of a kernel that goes through tiles of `size` keys."""
    n = w.s.shape[-1]
    m = torch.full((*w.s.shape[:3], 1), -math.inf, dtype=torch.float64)
    l, o = torch.zeros_like(m), torch.zeros(*w.s.shape[:3], w.v.shape[3]).double()
    firsts = range(0, n, size)
    for i, first in enumerate(firsts):
        s = w.s[..., first : first + size]
        top = torch.maximum(m, s.amax(-1, keepdim=True))
        alpha = torch.exp(m - finite(top))
        step = Step(i, len(firsts), alpha, torch.where(m == -math.inf, 0.0, top - m))
        p = torch.exp(s - finite(top))
        l = l * of_l(step) + adds(step, p.sum(-1, keepdim=True))
        o = kept(step, o * of_o(step) + used(p, w) @ w.v[:, :, first : first + size])
        m = top
    return divided(w, o, l)


def split(w: Work, cuts, s=None, v=None):
    """Return m, l and the undivided o of splits of the keys between cuts."""
    s, v = w.s if s is None else s, w.v if v is None else v
    found = []
    for first, last in itertools.pairwise(cuts):
        p, l, m = softmax_parts(w, s[..., first:last])
        found.append((m, l, used(p, w) @ v[:, :, first:last]))
    return tuple(torch.stack(x) for x in zip(*found, strict=True))


def even_cuts(n: int, count: int):
    """Return the ends of `count` splits of n keys, of nearly equal sizes."""
    count = min(count, n)
    return [i * n // count for i in range(count + 1)]


def joined(w: Work, m, l, o, weights):
    """Return outputs of splits, each divided, in a mean with weights that add up to 1."""
    part = o / torch.where(l == 0, torch.ones_like(l), l)
    total = weights.sum(0)
    return (weights * part).sum(0).div(torch.where(total == 0, 1.0, total)).to(w.call.q.dtype)
