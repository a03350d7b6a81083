"""Bugs in splits of the keys and in joining their outputs by log-sum-exps."""

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.sixteenth.frame import (
    blended,
    finite,
    joined,
    seeing,
    shares,
)
from labkernels.measure.strangers.wrong import (
    Work,
    attend,
    keys_of,
    masked,
    parts,
    places,
    right_output,
)

SPLIT = 40


def _join(join, keys: int = SPLIT) -> Bug:
    """Return a bug in a join of log-sum-exps and partial outputs."""
    return joined(keys, lambda w, lse, part: join(lse, part))


def _one_changed(part, number: int, change):
    """Return the partial outputs with one of them changed, if there are so many."""
    if len(part) <= abs(number):
        return part
    part = part.clone()
    part[number] = change(part[number])
    return part


def _one_by_one(after):
    """Return a join of one split after the other; after(lse, other) is the lse of both."""

    def join(lse, part):
        known, out = lse[0], part[0]
        for other, more in zip(lse[1:], part[1:], strict=True):
            share = shares(torch.stack([known, other]))
            out, known = share[0] * out + share[1] * more, after(known, other)
        return out

    return join


def _prefix_twice(lse, part):
    """The split of the shared prefix weighs double."""
    by = torch.where(torch.arange(len(lse)) == 0, 2.0, 1.0).double().log()
    return blended(lse + by[:, None, None, None, None], part)


def _overlapping(w: Work):
    """Each split of 48 keys but the first starts eight keys early."""
    key = keys_of(w)
    twice = (key % 48 >= 40) & ((key // 48 + 1) * 48 < len(key))
    return attend(w.s, w.v, w.call.q.dtype, weights=1 + twice.double())


def _not_yet_divided(w: Work):
    """Partial outputs that are not divided by l are joined by log-sum-exps."""
    m, l, o = parts(w, SPLIT)
    share = shares(m + l.clamp(min=1e-300).log())
    return (share * o).sum(0).to(w.call.q.dtype)


def _pairs_averaged(lse, part):
    """Pairs of splits are joined by their log-sum-exps, and the pairs are averaged."""
    pairs = [blended(lse[i : i + 2], part[i : i + 2]) for i in range(0, len(lse), 2)]
    return torch.stack(pairs).mean(0)


def _by_rows_and_heads(w: Work, lse, part):
    """Log-sum-exps that lie head by head are read row by row."""
    heads, rows = lse.shape[2:4]
    if rows == 1:
        return right_output(w)
    read = lse[..., 0].flatten(2).unflatten(2, (rows, heads)).transpose(2, 3)
    return blended(read[..., None], part)


def _masked_in_each(w: Work):
    """Each split of 64 keys is masked as if its last key were the last of all."""
    if not w.call.causal:
        return w.hidden
    queries, keys = w.hidden.shape
    key = places(w)[1]
    size = (keys - key // 64 * 64).clamp(max=64)
    return key % 64 > torch.arange(queries)[:, None] + size - queries


def _sevenths(w: Work):
    """Seven splits of L // 7 keys."""
    lost = keys_of(w) >= w.s.shape[-1] // 7 * 7
    return attend(masked(w.s, lost), w.v, w.call.q.dtype)


def _largest_total(w: Work):
    """The total of a row is the largest over the heads of its request."""
    m, l, o = parts(w, SPLIT)
    lse = m + l.clamp(min=1e-300).log()
    total = torch.logsumexp(lse, 0)
    return (torch.exp(m - finite(total).amax(1, keepdim=True)) * o).sum(0).to(w.call.q.dtype)


BUGS: dict[str, Bug] = {
    "partial log-sum-exps kept in bf16": _join(
        lambda lse, part: blended(lse.bfloat16().double(), part)
    ),
    "shares of splits of the head before": _join(
        lambda lse, part: (shares(lse).roll(1, 2) * part).sum(0)
    ),
    "the second split's output of the head before": _join(
        lambda lse, part: blended(lse, _one_changed(part, 1, lambda x: x.roll(1, 1)))
    ),
    "the last split's output of the request before": _join(
        lambda lse, part: blended(lse, _one_changed(part, -1, lambda x: x.roll(1, 0)))
    ),
    "joined one by one, the sum kept from the first": _join(
        _one_by_one(lambda lse, other: lse), 24
    ),
    "joined one by one, the larger sum kept": _join(_one_by_one(torch.maximum), 24),
    "the shared prefix weighs double": _join(_prefix_twice),
    "splits overlap by eight keys": _overlapping,
    "parts joined before their division": _not_yet_divided,
    "an empty split with an old sum": _join(
        lambda lse, part: blended(lse, part) / (1 + shares(lse)[0])
    ),
    "pairs of splits averaged": _join(_pairs_averaged, 24),
    "sums of splits read row by row": joined(SPLIT, _by_rows_and_heads),
    "each split masked from its own end": seeing(_masked_in_each),
    "seven splits of too few keys": _sevenths,
    "totals of the largest head": _largest_total,
}
"""By name: a function of the work that returns the wrong output."""
