"""Bugs of splits and merges: log-sum-exps, partial outputs, rings, prefixes and their weights."""

import itertools
import math

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.fifteenth.frame import (
    keys,
    merging,
    reading,
    shares,
    showing,
    spans,
    states,
    summed,
)
from labkernels.measure.strangers.wrong import Work


def _prefix_and_suffix(w: Work):
    n = w.k.shape[2]
    cut = n - min(64, max(1, n // 3))
    return [some for some in keys(w).tensor_split([cut]) if len(some)]


def _weighed(weigh):
    """The log-sum-exps that the merge takes are weigh(work, right ones)."""
    return lambda w, lse, part: (shares(weigh(w, lse)) * part).sum(0)


def _times(factor: float):
    return _weighed(lambda w, lse: lse * factor)


def _with_empty_splits(w: Work, lse, part):
    """The grid has six splits more than a request has pages, and they store zeros."""
    lse = torch.cat([lse, torch.zeros(6, *lse.shape[1:], dtype=lse.dtype)])
    return (shares(lse)[: len(part)] * part).sum(0)


def _without_the_newest(w: Work, lse):
    """The last split's log-sum-exp is that of a launch before its newest keys came."""
    last = spans(w)[-1]
    old = last[: max(1, len(last) // 2)]
    return torch.cat([lse[:-1], states(w, [old])[0]])


def _other_strides(w: Work, lse):
    """Log-sum-exps stored as [heads, splits] are read as [splits, heads]."""
    x = lse.permute(1, 3, 4, 2, 0)
    read = x.reshape(*x.shape[:3], x.shape[4], x.shape[3])
    return read.permute(3, 0, 4, 1, 2)


def _partial_of_the_next_head(w: Work, lse, part):
    other = torch.cat([part[:1], part[1:].roll(-1, 2)])
    return (shares(lse) * other).sum(0)


def _chunk_twice(w: Work, x):
    """The ring sends its third chunk once more in the place of the second."""
    size = -(-x.shape[2] // 4)
    j = keys(w)
    again = torch.where((j // size == 1) & (j + size < len(j)), j + size, j)
    return x[:, :, again]


def _prefix_twice(w: Work, p):
    by = 1 + (keys(w) < w.k.shape[2] // 2).double()
    return (p * by) @ w.v, (p * by).sum(-1, keepdim=True)


def _overlapping(w: Work):
    n = w.k.shape[2]
    cuts = [i * n // 4 for i in range(5)]
    return [torch.arange(max(0, a - 8), b) for a, b in itertools.pairwise(cuts) if b > a]


def _remainder(w: Work):
    n = w.k.shape[2]
    return w.hidden | (keys(w) >= n - n % 8) if n > 8 else w.hidden


def _last_not_arrived(w: Work, lse, part):
    return (shares(lse)[:-1] * part[:-1]).sum(0)


def _larger_kept(w: Work, lse, part):
    """Splits are merged one by one, and the larger log-sum-exp stands for the sum of both."""
    top, out = lse[0], part[0]
    for x, o in zip(lse[1:], part[1:], strict=True):
        by = torch.softmax(torch.stack([top, x]), 0)
        out = by[0] * out + by[1] * o
        top = torch.maximum(top, x)
    return out


def _exchanged(w: Work, lse, part):
    return (shares(lse).flip(0) * part).sum(0)


def _overwritten(w: Work, lse, part):
    """The merged log-sum-exp is stored before the second half of the channels is merged."""
    total = torch.logsumexp(lse, 0)
    late = shares(torch.cat([total[None], lse[1:]]))
    half = part.shape[-1] // 2
    early = (shares(lse) * part)[..., :half].sum(0)
    return torch.cat([early, (late * part)[..., half:].sum(0)], -1)


def _coarse(w: Work, lse):
    """Log-sum-exps are kept in e4m3, in quarters of units of log2."""
    by = math.log2(math.e)
    return (lse * by * 4).to(torch.float8_e4m3fn).double() / by / 4


BUGS: dict[str, Bug] = {
    "log2 taken for a natural logarithm in the merge": merging(
        _times(math.log2(math.e)), _prefix_and_suffix
    ),
    "empty splits with a log-sum-exp of 0": merging(_with_empty_splits),
    "last log-sum-exp without its newest keys": merging(_weighed(_without_the_newest)),
    "log-sum-exps read with other strides": merging(_weighed(_other_strides)),
    "partials but the first of the next head": merging(_partial_of_the_next_head),
    "a chunk of the ring twice": reading(_chunk_twice),
    "shared prefix merged twice": summed(_prefix_twice),
    "splits that overlap by 8 keys": merging(
        lambda w, lse, part: (shares(lse) * part).sum(0), _overlapping
    ),
    "rest of the keys in no split": showing(_remainder),
    "reduction before the last split": merging(_last_not_arrived),
    "larger log-sum-exp for the sum of two": merging(_larger_kept),
    "weights of prefix and suffix exchanged": merging(_exchanged, _prefix_and_suffix),
    "log-sum-exp overwritten before the last channels": merging(_overwritten, _prefix_and_suffix),
    "log-sum-exps in 8 bits": merging(_weighed(_coarse)),
}
"""Name: the bug."""
