"""Bugs of masks without any options: which keys a row sees, and with which weight."""

import torch

from labkernels.measure.strangers.looked_at.sixteenth.frame import (
    finite,
    kept,
    over,
    seeing,
    unmasked,
    weights,
)
from labkernels.measure.strangers.wrong import Work, attend, places


def _causal(hide):
    """Return a bug in a causal mask: hide(work, place, key) is True where a key is hidden."""
    return seeing(lambda w: hide(w, *places(w)) if w.call.causal else w.hidden)


def _rows(w: Work):
    return torch.arange(w.s.shape[2])[:, None]


def _short(size: int, whole: int) -> int:
    """Return how much a size lacks to a multiple of a whole number."""
    return -size % whole


def _chunk(w: Work) -> int:
    """Return the place of the first query."""
    return w.s.shape[3] - w.s.shape[2]


def _padded_stride(w: Work, at, key):
    keys = w.s.shape[3]
    flat = w.hidden.flatten()
    return flat[(_rows(w) * (keys + _short(keys, 8)) + key) % len(flat)]


def _packed_by_head(w: Work, at, key):
    """A row of a group is number g M + i of its tile, which is taken for i group + g."""
    group, queries = w.call.group, w.s.shape[2]
    g = (torch.arange(w.s.shape[1]) % group)[:, None, None]
    return key > (g * queries + _rows(w)) // group + _chunk(w)


def _image(w: Work, at, key):
    first, last = _chunk(w), _chunk(w) + w.s.shape[2] // 2
    inside = (key >= first) & (key < last) & (at < last)
    return (key > at) & ~inside


def _in_denominator(w: Work):
    s, p = unmasked(w), weights(w)
    l = torch.exp(s - finite(w.s.amax(-1, keepdim=True))).sum(-1, keepdim=True)
    return over(w, kept(w, p) @ w.v, l)


BUGS = {
    "diagonal tiles of 16 without a mask": _causal(lambda w, at, key: key // 16 > at // 16),
    "the diagonal tile of 8 left out": _causal(lambda w, at, key: key >= at // 8 * 8),
    "places from queries padded to 16": _causal(
        lambda w, at, key: key > at - _short(w.s.shape[2], 16)
    ),
    "drafted tokens see only the prompt and themselves": _causal(
        lambda w, at, key: (key >= _chunk(w)) & (key != at)
    ),
    "the chunk's mask transposed": _causal(lambda w, at, key: (key >= _chunk(w)) & (key < at)),
    "mask rows at a padded stride": _causal(_padded_stride),
    "packed rows masked as token by token": _causal(_packed_by_head),
    "a sparse pattern of every eighth key": _causal(
        lambda w, at, key: (key > at) | ((key < at - 24) & (key % 8 != 0))
    ),
    "rows masked as the first of their eight": _causal(lambda w, at, key: key > at - _rows(w) % 8),
    "an image's tokens see each other": _causal(_image),
    "hidden keys lowered by one": lambda w: attend(
        unmasked(w) - 1.0 * w.hidden, w.v, w.call.q.dtype
    ),
    "hidden keys in the denominator alone": _in_denominator,
}
