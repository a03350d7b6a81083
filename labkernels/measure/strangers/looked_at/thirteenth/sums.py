"""Bugs of sums over keys: rescales, accumulators, splits and their merge, rings and clusters."""

import math

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.thirteenth.frame import (
    FACTOR,
    LOST,
    MERGE,
    RESCALE,
    SUM,
    TWICE,
    Step,
    V,
    cast,
    joined,
    looped,
    of_sums,
    put,
    settled,
    shares,
    spans,
    states,
    weights,
)
from labkernels.measure.strangers.wrong import Work, keys_of, masked, right_output, scored

_LOG2_E = math.log2(math.e)


def _kept(step: Step, kept):
    """Return the factor of a tile, or 1 where it is left out."""
    return torch.where(torch.as_tensor(kept), torch.ones_like(step.factor), step.factor)


def _small_moves(step: Step, o, l):
    factor = _kept(step, step.moved < 2)
    return step.added(o, l, factor, factor)


def _other_rows(x):
    """Return what belongs to the row before, in the order of heads and queries."""
    return x.flatten(1, 2).roll(1, 1).reshape(x.shape)


def _half_rescaled(step: Step, o, l):
    factor = step.factor.expand_as(o).clone()
    factor[..., o.shape[-1] // 2 :] = 1
    return step.added(o, l, of_o=factor)


def _in(dtype, x):
    return x.to(dtype).double()


def _one_lse(w: Work):
    """Merge one split after the other; the log-sum-exp beside the output stays the first."""
    lse, part = states(w, spans(w.s.shape[-1], 4))
    bad, fair, of_fair = part[0], part[0], lse[0]
    for other, new in zip(lse[1:], part[1:], strict=True):
        bad = bad + torch.sigmoid(other - lse[0]) * (new - bad)
        share = torch.sigmoid(other - of_fair).nan_to_num()
        fair, of_fair = fair + share * (new - fair), torch.logaddexp(of_fair, other)
    one = torch.ones_like(lse[0])
    return settled(w, put(w, bad, one), put(w, fair, one))


def _empty_splits(w: Work, lse, part):
    """There are 48 splits of 16 keys; those without a key have a log-sum-exp of 0."""
    top = lse.amax(0).clamp(min=0)
    empty = max(0, 48 - -(-w.s.shape[-1] // 16))
    extra = empty * torch.exp(-top)[None]
    return torch.cat([torch.exp(lse - top), extra]), torch.cat([part, 0 * part[:1]])


def _sums(w: Work, keys: slice):
    s = w.s[..., keys]
    p = weights(s)
    return s.amax(-1, keepdim=True), p.sum(-1, keepdim=True), cast(w, p) @ w.v[:, :, keys]


def _added_raw(of_l: bool) -> Bug:
    """Return a bug: sums of two parts are added, but for l perhaps, without their factors."""

    def bug(w: Work):
        cut = w.s.shape[-1] * 2 // 3
        if not cut:
            return right_output(w)
        (m, l, o), (m2, l2, o2) = (_sums(w, keys) for keys in (slice(cut), slice(cut, None)))
        top = torch.maximum(m, m2)
        a, b = torch.exp(m - top), torch.exp(m2 - top)
        bad = put(w, o + o2, l + l2 if of_l else a * l + b * l2)
        return settled(w, bad, put(w, a * o + b * o2, a * l + b * l2))

    return bug


def _cut_splits(w: Work):
    """Each of four splits ends with its last whole tile of 8 keys."""
    size = -(-w.s.shape[-1] // 4)
    return masked(w.s, keys_of(w) % size >= max(1, size // 8 * 8))


def _weighted(change) -> Bug:
    """Return a bug in the weights of keys: change(keys [L], number of keys) returns factors."""

    def both(w: Work, p, used):
        factor = change(keys_of(w), w.s.shape[-1]).double()
        return (used * factor) @ w.v, (p * factor).sum(-1, keepdim=True)

    return of_sums(both)


WRONG: dict[str, tuple[Bug, str]] = {
    "factor of the maximum a tile late": (
        looped(32, lambda step, o, l: step.added(o, l, of_o=step.before)),
        RESCALE,
    ),
    "P follows moves of the maximum that o and l do not": (looped(32, _small_moves), RESCALE),
    "odd tiles do not rescale the sum": (
        looped(16, lambda step, o, l: step.added(o, l, of_l=_kept(step, step.number % 2 == 1))),
        rf"{SUM}|o and l",
    ),
    "o rescaled by the factor of the row before": (
        looped(16, lambda step, o, l: step.added(o, l, of_o=_other_rows(step.factor))),
        RESCALE,
    ),
    "o rescaled twice where two warps vote": (
        looped(16, lambda step, o, l: step.added(o, l, of_o=step.factor ** (1 + step.number % 2))),
        RESCALE,
    ),
    "later half of the channels not rescaled": (looped(32, _half_rescaled), RESCALE),
    "o in bf16 between tiles of 16": (
        looped(16, lambda step, o, l: step.added(_in(torch.bfloat16, o), l)),
        r"o accumulated|partial outputs",
    ),
    "l in bf16 between steps of 4 keys": (
        looped(4, lambda step, o, l: step.added(o, _in(torch.bfloat16, l))),
        r"denominator|l accumulated",
    ),
    "log-sum-exps of the head beside": (
        joined(5, lambda w, lse, part: (shares(lse.roll(1, 2)), part)),
        MERGE,
    ),
    "log-sum-exps times the scale": (
        joined(4, lambda w, lse, part: (shares(lse * w.call.scale), part)),
        rf"{MERGE}|lse",
    ),
    "a merge in place that keeps the first log-sum-exp": (_one_lse, MERGE),
    "splits without a key weigh one": (
        lambda w: joined(-(-w.s.shape[-1] // 16), _empty_splits)(w),
        rf"denominator|padding|sink|{MERGE}",
    ),
    "parts in e4m3 before the merge": (
        joined(4, lambda w, lse, part: (shares(lse), _in(torch.float8_e4m3fn, part))),
        r"partial outputs",
    ),
    "a tail added with a maximum of its own": (
        _added_raw(of_l=True),
        rf"{MERGE}|{RESCALE}|lanes merged",
    ),
    "a cluster that joins l by the maximum, but not o": (
        _added_raw(of_l=False),
        rf"{RESCALE}|{MERGE}|denominator with|lanes merged",
    ),
    "a ring that ends with its own chunk again": (
        _weighted(lambda at, n: 1 + (at >= n - n // 4)),
        TWICE,
    ),
    "prefix and suffix share a page": (
        _weighted(lambda at, n: 1 + ((at >= n // 2 - 16) & (at < n // 2))),
        TWICE,
    ),
    "splits cut to whole tiles": (scored(_cut_splits), LOST),
    "P times 448 and the output by 1 / 256": (
        of_sums(lambda w, p, used: (used @ w.v * 1.75, p.sum(-1, keepdim=True))),
        FACTOR,
    ),
    "last split without V's scale": (
        of_sums(
            lambda w, p, used: (
                (used * torch.where(keys_of(w) >= w.s.shape[-1] * 3 // 4, 0.6, 1.0).double()) @ w.v,
                p.sum(-1, keepdim=True),
            )
        ),
        rf"{V} by a factor|denominator with",
    ),
}
"""Name: the bug, and a pattern that a right name for it matches."""
