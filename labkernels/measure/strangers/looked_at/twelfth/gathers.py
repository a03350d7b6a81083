"""Bugs in how parts of the keys meet: splits, rings, clusters, cascades, and their scales."""

import math

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.twelfth.frame import (
    K_SCALE,
    LOST,
    MERGE,
    TWICE,
    V_READ,
    V_SCALE,
    joined,
    parts,
    put,
    shares,
    states,
)
from labkernels.measure.strangers.wrong import Work, attend, keys_of, masked, right_output, scored

_LOG2_E = math.log2(math.e)


def _by_lse(count: int, change) -> Bug:
    """Return a bug in which parts are weighted by other log-sum-exps: change(lse) gives them."""
    return joined(count, lambda w, lse, part: (shares(change(lse)), part))


def _written_by_row(lse):
    """Log-sum-exps are written as [row, head] and read as [head, row]."""
    if lse.shape[3] == 1:
        return lse
    return lse.transpose(2, 3).reshape(lse.shape)


def _empty_parts(w: Work, lse, part, count: int = 18):
    """Eighteen more parts have no keys, and their log-sum-exp is left at 0."""
    weights = shares(lse)
    empty = torch.exp(-lse.amax(0, keepdim=True)) * count
    return torch.cat([weights, empty]), torch.cat([part, torch.zeros_like(part[:1])])


def _upper_channels_of_first(w: Work, lse, part):
    part = part.clone()
    part[1:2, ..., part.shape[-1] // 2 :] = part[:1, ..., part.shape[-1] // 2 :]
    return shares(lse), part


def _largest_of_two(w: Work, lse, part):
    """Parts join one after another; the larger log-sum-exp of two stands for both."""
    out, known = part[0], lse[0]
    for own, new in zip(lse[1:], part[1:], strict=True):
        share = torch.sigmoid((own - known).nan_to_num(nan=-math.inf))
        out, known = (1 - share) * out + share * new, torch.maximum(known, own)
    return torch.ones_like(known)[None], out[None]


def _right_kept(w: Work, lse, part):
    """In each pair of parts the second one is weighted by its own maximum, not the common one."""
    weights = shares(lse).clone()
    high = torch.maximum(lse[:-1:2], lse[1::2])
    weights[1::2] = torch.exp(high - lse.amax(0)) * (lse[1::2] > -math.inf)
    return weights, part


def _mixed_bases(w: Work, lse, part):
    """The first half of the parts, a prefix, has its log-sum-exp in log2 units."""
    lse = lse.clone()
    lse[: len(lse) // 2] *= _LOG2_E
    return shares(lse), part


def _below_the_mean(w: Work, lse, part):
    """A part whose log-sum-exp is the smallest is taken for an empty one."""
    lowest = (lse == lse.amin(0)) & (lse < lse.amax(0))
    return shares(lse) * ~lowest, part


def _e4m3(x):
    return x.float().to(torch.float8_e4m3fn).double()


def _parts_of_fp8(w: Work, lse, part):
    """Partial outputs are in e4m3, each with a scale from its largest number."""
    scale = part.abs().amax((-1, -2), keepdim=True).clamp(min=1e-30) / 448
    return shares(lse), _e4m3(part / scale) * scale


def _overlapping(w: Work, count: int = 5, by: int = 8):
    """Each part but the first begins eight keys early."""
    cut = parts(w.s.shape[-1], count)
    cut = [slice(max(0, keys.start - by), keys.stop) for keys in cut]
    lse, part = states(w, cut)
    return put(w, (shares(lse) * part).sum(0), shares(lse).sum(0))


def _part_of_key(w: Work, count: int):
    return keys_of(w) // -(-w.s.shape[-1] // count)


def _rounded_down(w: Work, count: int = 6):
    n = w.s.shape[-1]
    return masked(w.s, (keys_of(w) >= n // count * count) & (n >= count))


def _tail_of_parts(w: Work, count: int = 4, tail: int = 6):
    """A block reads the part of its neighbour before the last six keys are in it."""
    size = -(-w.s.shape[-1] // count)
    odd = _part_of_key(w, count) % 2 == 1
    return masked(w.s, odd & (keys_of(w) % size >= size - tail))


def _first_part_again(w: Work, count: int = 5):
    """A ring adds its own keys first, and again in its last step."""
    twice = (_part_of_key(w, count) == 0).double() + 1
    return attend(w.s, w.v, w.call.q.dtype, weights=twice)


def _next_part_skipped(w: Work, count: int = 5):
    """A ring of five waits for its third hop, but never adds it for odd heads."""
    odd = (torch.arange(w.s.shape[1]) % 2 == 1)[:, None, None]
    return w.s.masked_fill(odd & (_part_of_key(w, count) == 2), -math.inf)


def _v_scale_of_last(w: Work, count: int = 4):
    last = (_part_of_key(w, count) == count - 1)[:, None]
    return attend(w.s, torch.where(last, 0.7 * w.v, w.v), w.call.q.dtype)


def _k_scale_of_suffix(w: Work):
    """The k_scale of an fp8 cache is used for the tokens of this step, which are not in fp8."""
    new = keys_of(w) >= w.s.shape[-1] - max(8, w.q.shape[2])
    return w.scores(k=torch.where(new[:, None], 1.5 * w.k, w.k))


def _sorted_tables(w: Work, lse, part):
    """Parts come in the order in which they ended, and their weights in that of their keys."""
    return shares(lse), part.roll(1, 0)


def _one_of_two_groups(w: Work):
    """Two warpgroups take tiles in turn; the second's sum is added to l, its product is not."""
    lost = keys_of(w) // 32 % 4 == 1
    if not lost.any():
        return right_output(w)
    return attend(w.s, torch.where(lost[:, None], 0 * w.v, w.v), w.call.q.dtype)


WRONG: dict[str, tuple[Bug, str]] = {
    "log-sum-exps of parts in e4m3": (_by_lse(5, _e4m3), f"{MERGE}|log-sum-exp"),
    "log-sum-exps of the head before": (_by_lse(5, lambda lse: lse.roll(1, 2)), MERGE),
    "log-sum-exps by row read as by head": (_by_lse(4, _written_by_row), MERGE),
    "eighteen empty parts with a log-sum-exp of 0": (
        joined(4, _empty_parts),
        f"{MERGE}|denominator|padding|of score 0|sink(?!s? left out)",
    ),
    "upper channels of the second part from the first": (
        joined(4, _upper_channels_of_first),
        "splits|channels",
    ),
    "the larger log-sum-exp for that of both": (joined(5, _largest_of_two), MERGE),
    "second of each pair of parts not rescaled": (
        joined(6, _right_kept),
        f"{MERGE}|o and l|factor for each",
    ),
    "a prefix in log2 units and a suffix in natural ones": (
        joined(4, _mixed_bases),
        f"{MERGE}|log base|log-sum-exp",
    ),
    "the lightest part taken for an empty one": (joined(5, _below_the_mean), f"{MERGE}|{LOST}"),
    "partial outputs in e4m3 with a scale": (joined(4, _parts_of_fp8), "partial outputs|splits"),
    "partial outputs one place on": (joined(4, _sorted_tables), f"{MERGE}|partial outputs"),
    "parts begin eight keys early": (_overlapping, f"{TWICE}|overlap|keys by a factor"),
    "keys divided among six parts and rounded down": (scored(_rounded_down), LOST),
    "last six keys of odd parts not yet there": (scored(_tail_of_parts), LOST),
    "a ring's own part first and last": (_first_part_again, f"{TWICE}|keys by a factor"),
    "a hop of the ring lost for odd heads": (scored(_next_part_skipped), LOST),
    "V scale of the cache not applied in the last part": (_v_scale_of_last, V_SCALE),
    "k_scale of the cache for new tokens, too": (scored(_k_scale_of_suffix), f"scale|{K_SCALE}"),
    "tiles of the second warpgroup, every other one, not in o": (
        _one_of_two_groups,
        f"{V_SCALE}|{V_READ}",
    ),
}
"""Name: the bug, and a pattern that a right name for it matches."""
