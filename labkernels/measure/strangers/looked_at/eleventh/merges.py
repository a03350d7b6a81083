"""Bugs where partial results meet: splits, rings, clusters, cascades and their log-sum-exps."""

import math

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.eleventh.parts import (
    DENOMINATOR,
    LOST,
    MERGE,
    V_MISSING,
    by_lse,
    joined,
    share,
    weighed,
)
from labkernels.measure.strangers.wrong import Work, keys_of

WEIGHTS = f"{MERGE}|lse"


def _transposed(lse):
    """Log-sum-exps written as [splits, heads], read as [heads, splits]."""
    n, b, h = lse.shape[:3]
    return lse.transpose(1, 2).reshape(h, n, b, *lse.shape[3:]).permute(1, 2, 0, 3, 4)


def _pairs_by_maximum(lse):
    """Pairs get the larger of two log-sum-exps, which then weighs the pair."""
    n = len(lse) // 2 * 2
    if n < 4:
        return lse
    pairs = lse[:n].unflatten(0, (-1, 2))
    lost = torch.logsumexp(pairs, 1, keepdim=True) - pairs.amax(1, keepdim=True)
    return torch.cat([(pairs - lost.nan_to_num()).flatten(0, 1), lse[n:]])


def _first_lse_kept(lse, part):
    """Each step of a ring weighs its part by a sigmoid against the lse of the first step."""
    o = part[0]
    for own, more in zip(lse[1:], part[1:], strict=True):
        o = o + torch.sigmoid((own - lse[0]).nan_to_num(nan=-math.inf)) * (more - o)
    return o[None], torch.ones_like(lse[:1])


def _of_rank(change):
    """Return a merge with a part changed: change(part) returns the parts."""
    return lambda lse, part: (share(lse) * change(part), share(lse))


def _first_for_second(part):
    return torch.cat([part[:1], part[:1], part[2:]]) if len(part) > 1 else part


def _rank_missing(lse, part):
    """The third of the ranks had not written: zeros, and a weight of nothing."""
    keep = torch.ones(len(part), 1, 1, 1, 1)
    keep[2:3] = 0
    return share(lse) * part * keep, share(lse) * keep


def _part_missing(lse, part):
    """The second of the parts is not added to o, but its sum is to l."""
    keep = torch.ones(len(part), 1, 1, 1, 1)
    keep[1:2] = 0
    return share(lse) * part * keep, share(lse)


def _tail_as_full(lse):
    """The last split, which is half as long, weighs as if it were a whole one."""
    return torch.cat([lse[:-1], lse[-1:] + math.log(2)]) if len(lse) > 1 else lse


def _suffix_in_base_2(lse):
    """The last split's log-sum-exp is in base 2, the others' in base e."""
    return torch.cat([lse[:-1], lse[-1:] / math.log(2)]) if len(lse) > 1 else lse


def _prefix_of_mean(lse):
    """The first split has the mean log-sum-exp of all requests."""
    return torch.cat([lse[:1].mean(1, keepdim=True).expand_as(lse[:1]), lse[1:]])


def _next_row(lse):
    """Rows, counted over heads and queries, read the log-sum-exps of the row behind."""
    return lse.flatten(2, 3).roll(-1, 2).reshape(lse.shape)


def _powers_of_two(lse):
    return torch.floor(lse / math.log(2)) * math.log(2)


def _empty_splits(lse, part):
    """Of the 16 splits of a launch, those with no keys have log-sum-exps and outputs of 0."""
    more = torch.zeros(max(0, 16 - len(lse)), *part.shape[1:]).double()
    lse = torch.cat([lse, more[..., :1]])
    return share(lse) * torch.cat([part, more]), share(lse)


def _winner(lse, part):
    """Only the split of the largest log-sum-exp counts."""
    best = (lse == lse.amax(0)).double()
    return best * part, best


def _levels(w: Work, p, l):
    """Both levels of a cascade see the prefix of 24 keys, if more keys follow."""
    again = (keys_of(w) < 24) & (len(keys_of(w)) > 24)
    p = torch.where(again, 2 * p, p)
    return p, p.sum(-1, keepdim=True)


def _maxima_of_two(lse, part):
    """The larger of the first two log-sum-exps serves as maximum, and weights stop at 1."""
    given = torch.exp(lse - lse[:2].amax(0)).nan_to_num().clamp(max=1.0)
    return given * part, given


WRONG: dict[str, tuple[Bug, str]] = {
    "lse of [splits, heads] read as [heads, splits]": (joined(40, by_lse(_transposed)), WEIGHTS),
    "pairs of splits weighed by their larger lse": (joined(32, by_lse(_pairs_by_maximum)), WEIGHTS),
    "a ring that keeps the first lse": (joined(36, _first_lse_kept), WEIGHTS),
    "the third rank had not written": (joined(36, _rank_missing), LOST),
    "the second part is missing in o": (joined(44, _part_missing), f"{V_MISSING}|{MERGE}"),
    "the first rank's part for the second": (
        joined(44, _of_rank(_first_for_second)),
        f"(?<!and )V read(?! for)|{MERGE}|split counted twice",
    ),
    "the last split weighs twice": (
        joined(56, by_lse(_tail_as_full)),
        f"{WEIGHTS}|split counted twice|keys counted twice|weights of keys by",
    ),
    "the suffix's lse in base 2": (
        joined(72, by_lse(_suffix_in_base_2)),
        f"mixed log base|{WEIGHTS}",
    ),
    "the prefix's lse averaged over requests": (joined(40, by_lse(_prefix_of_mean)), WEIGHTS),
    "lse of the row behind": (joined(48, by_lse(_next_row)), WEIGHTS),
    "weights of splits as powers of two": (joined(28, by_lse(_powers_of_two)), WEIGHTS),
    "empty splits with an lse of 0, up to 16": (
        joined(60, _empty_splits),
        f"{DENOMINATOR}|padding|sink(?! left)|{MERGE}",
    ),
    "the best split takes all": (joined(64, _winner), f"{MERGE}|{LOST}|weights dropped"),
    "a prefix of 24 keys in both levels of a cascade": (
        weighed(_levels),
        "counted twice|weights of keys by",
    ),
    "the maximum of two of many splits": (joined(24, _maxima_of_two), f"{WEIGHTS}|clamped"),
}
"""Name: the bug, and a pattern that a right name for it matches."""
