"""Bugs of split keys: their bounds, their log-sum-exps, and the join of partial outputs."""

import math

import torch

from labkernels.measure.strangers.wrong import (
    Work,
    attend,
    keys_of,
    masked,
    parts,
    places,
    scored,
)
from tests.strangers.frame import blended, joined, shares

LOG2_E = math.log2(math.e)


def _overlapping(w: Work):
    twice = (keys_of(w) >= 40) & (keys_of(w) % 40 < 8)
    return attend(w.s, w.v, w.call.q.dtype, weights=1.0 + twice)


def _short_ring(w: Work):
    at, key = places(w)
    keys = w.s.shape[3]
    return masked(w.s, (key < keys // 4) & (at >= 3 * keys // 4))


def _one_by_one(update):
    """Return a join in turn: update(lse, next lse) gives the sum that the next join starts from."""

    def join(w: Work, lse, part):
        out, total = part[0], lse[0]
        for next_lse, next_part in zip(lse[1:], part[1:], strict=True):
            share = torch.sigmoid(next_lse - total)
            out, total = out + share * (next_part - out), update(total, next_lse)
        return out

    return join


def _turned_sign(total, next_lse):
    """A right update subtracts the log of the share that is kept, not of the new share."""
    return total - torch.nn.functional.logsigmoid((next_lse - total).clamp(min=-60.0))


def _changed(lse=None, part=None, keys: int = 40):
    """Return a bug that changes all log-sum-exps, or all partial outputs, before a right join."""
    return joined(keys, lambda w, x, y: blended(lse(w, x) if lse else x, part(w, y) if part else y))


def _first(x, change):
    """Return x with its first split changed."""
    return torch.cat([change(x[:1]), x[1:]])


def _three_slots(w: Work, lse, part):
    number = torch.arange(len(lse))
    last = number + (len(lse) - 1 - number) // 3 * 3
    return blended(lse[last], part[last])


def _by_head(w: Work, lse):
    """Return log-sum-exps stored as [S, H] and read as [H, S]."""
    x = lse.permute(1, 3, 4, 0, 2)
    splits, heads = x.shape[-2:]
    read = x.flatten(-2).unflatten(-1, (heads, splits))
    return read.permute(4, 0, 3, 1, 2)


def _not_divided(w: Work):
    m, l, o = parts(w, 40)
    return (shares(m + l.clamp(min=1e-300).log()) * o).sum(0).to(w.call.q.dtype)


def _halves(join):
    """Return a bug in the join of two halves of the keys."""
    return lambda w: joined(w.s.shape[3] // 2 + 1, join)(w)


BUGS = {
    "splits that overlap by eight keys": _overlapping,
    "a ring of four that stops a step early": scored(_short_ring),
    "a ring that turns the sign of its update": joined(16, _one_by_one(_turned_sign)),
    "a join that keeps the first log-sum-exp": joined(16, _one_by_one(lambda a, b: a)),
    "a join that goes on with the larger log-sum-exp": joined(16, _one_by_one(torch.maximum)),
    "log-sum-exps cut to integers": _changed(lambda w, x: x.trunc(), keys=24),
    "a workspace of three slots": joined(12, _three_slots),
    "log-sum-exps in base 2 taken by exp": _changed(lambda w, x: x * LOG2_E, keys=16),
    "the first split's log-sum-exp in base 2": _changed(
        lambda w, x: _first(x, lambda y: y * LOG2_E)
    ),
    "parts not divided by their sums": _not_divided,
    "the weights of two halves swapped": _halves(lambda w, x, y: blended(x.flip(0), y)),
    "log-sum-exps by split read by head": _changed(_by_head, keys=16),
}
