"""Bugs of the tenth set in what joins splits, devices of a ring and thread blocks of a cluster."""

import math
from collections.abc import Callable

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.inputs import Asked
from labkernels.measure.strangers.looked_at.tenth.tiles import (
    DIVISOR,
    FACTOR,
    KEYS,
    LOST,
    MERGE,
    TWICE,
    V_KEYS,
    divided,
    effective,
    even_cuts,
    finite,
    joined,
    softmax_parts,
    split,
    used,
)
from labkernels.measure.strangers.wrong import Work, attend, keys_of, masked, read, scored, valued


def _weighed(count: int, weigh: Callable) -> Callable:
    """A bug in the weights of splits: weigh(log-sum-exps [splits, B, H, M, 1], work)."""

    def bug(w: Work):
        m, l, o = split(w, even_cuts(w.s.shape[-1], count))
        lse = m + torch.log(l)
        same = joined(w, m, l, o, _right(lse))
        return effective(w, joined(w, m, l, o, weigh(lse, w)), same)

    return bug


def _right(lse):
    return torch.exp(lse - finite(lse.amax(0)))


def _base2(lse, w: Work):
    """Log-sum-exps in base 2 merged in base e."""
    lse = lse * math.log2(math.e)
    return torch.exp(lse - finite(lse.amax(0)))


def _base2_of_one(lse, w: Work):
    """The last split's in base 2, as from another kernel, the others' in base e."""
    last = torch.arange(len(lse))[:, None, None, None, None] == len(lse) - 1
    return _right(torch.where(last, lse * math.log2(math.e), lse))


def _exp2_of_natural(lse, w: Work):
    return torch.exp2(lse - finite(lse.amax(0)))


def _by_length(lse, w: Work):
    """Weights by the keys that a split has."""
    return torch.ones_like(lse) * (lse > -math.inf)


def _capped_weights(lse, w: Work):
    """Weights relative to the first split, none above 1."""
    weights = torch.exp((lse - finite(lse[:1])).clamp(max=0.0))
    return weights * (lse > -math.inf)


def _other_heads(lse, w: Work):
    """Log-sum-exps [H, M] read as [M, H]."""
    s, b, h, m = lse.shape[:4]
    return _right(lse.reshape(s, b, m, h).transpose(2, 3)[..., None])


def _next_heads(lse, w: Work):
    """Log-sum-exps of the next head, from a stride that counts one too many."""
    return _right(lse.roll(-1, 2))


def _flipped(lse, w: Work):
    """A sigmoid of the difference with the wrong sign: each split has the other's weight."""
    return _right(lse).flip(0)


def _pairwise(lse, w: Work):
    """Halves of what was there and of what is new, three times."""
    size = torch.tensor([0.125, 0.125, 0.25, 0.5], dtype=torch.float64)[-len(lse) :]
    return size[:, None, None, None, None] * (lse > -math.inf)


def _maxima(w: Work):
    """Splits weighed by their maxima alone, without their sums."""
    m, l, o = split(w, even_cuts(w.s.shape[-1], 4))
    return joined(w, m, l, o, torch.exp(m - finite(m.amax(0))) * (l > 0))


def _undivided(w: Work):
    """Sums of splits weighed as if they were already divided."""
    m, l, o = split(w, even_cuts(w.s.shape[-1], 3))
    weights = _right(m + torch.log(l))
    return divided(w, (weights * o).sum(0), weights.sum(0))


def _uneven(w: Work, cuts, weights=None):
    """Splits of unlike sizes, of which the first has all weights times two."""
    m, l, o = split(w, cuts)
    of = _right(m + torch.log(l))
    of[0] *= 2
    return joined(w, m, l, o, of)


def _remainder(w: Work, count: int = 8):
    """Splits of the same whole number of keys, whose remainder nobody takes."""
    n = w.s.shape[-1]
    return masked(w.s, (keys_of(w) >= n // count * count) & (keys_of(w) > 0))


def _bounds_twice(w: Work, count: int = 6):
    """Splits that both take the key at which they meet."""
    cuts = torch.tensor(even_cuts(w.s.shape[-1], count)[1:-1])
    again = (keys_of(w)[:, None] == cuts).any(-1)
    return attend(w.s, w.v, w.call.q.dtype, weights=1.0 + again.double())


def _five_of_six(w: Work):
    """A buffer for five of six splits: the last one was never merged."""
    first = even_cuts(w.s.shape[-1], 6)[-2]
    hidden = (keys_of(w) >= first) & (keys_of(w) > 0)
    return masked(w.s, hidden)


def _half_of_cluster(w: Work):
    """The output of the second block read before it was there; its sum came in time."""
    p, l, _ = softmax_parts(w)
    first = keys_of(w) < len(keys_of(w)) // 2
    return divided(w, used(p * first, w) @ w.v, l)


def _own_twice(w: Work):
    """A block that adds its own part for its neighbour's."""
    m, l, o = split(w, even_cuts(w.s.shape[-1], 2))
    weights = torch.exp(m - finite(m.amax(0)))
    return divided(w, 2 * weights[0] * o[0], 2 * weights[0] * l[0])


def _zigzag(w: Work):
    """Chunks of V in a zigzag over two devices, K in order."""
    a, b, c, d = torch.arange(w.v.shape[2]).tensor_split(4)
    index = torch.cat([a, d, b, c])
    return read(w.v, index)


def _zigzag_of_both(w: Work):
    """Chunks of K and V in a zigzag, under a mask for keys in order."""
    a, b, c, d = torch.arange(w.v.shape[2]).tensor_split(4)
    index = torch.cat([a, d, b, c])
    return attend(w.scores(k=read(w.k, index)), read(w.v, index), w.call.q.dtype)


def _own_log_sum(w: Work):
    """Each device divides by its own sum, and nobody by the sum of all."""
    m, l, o = split(w, even_cuts(w.s.shape[-1], 2))
    part = o / torch.where(l == 0, torch.ones_like(l), l)
    return (_right(m + torch.log(l)) * part).sum(0).to(w.call.q.dtype)


def _added_to_old(w: Work):
    """Atomic additions to an output that holds the request before."""
    out = attend(w.s, w.v, w.call.q.dtype).double()
    return (out + out.roll(1, 0)).to(w.call.q.dtype)


def _skipped_step(w: Work):
    """The second of four devices of a ring skipped, but for the rows whose own keys it has."""
    quarter = w.s.shape[-1] // 4
    return masked(w.s, (keys_of(w) >= quarter) & (keys_of(w) < 2 * quarter))


def _v_of_ring(w: Work):
    """V one step behind K in a ring of three."""
    whole = w.v.shape[2] // 3 * 3
    key = keys_of(w)
    behind = (key - whole // 3) % max(1, whole)
    return read(w.v, torch.where(key < whole, behind, key))


def _prefix_twice(w: Work):
    """A shared prefix in the prefix's kernel, and its last page in the suffix's too."""
    n = w.s.shape[-1]
    again = (keys_of(w) >= n // 2 - 16) & (keys_of(w) < n // 2)
    return attend(w.s, w.v, w.call.q.dtype, weights=1.0 + again.double())


def _prefix_alone(w: Work):
    """A suffix that never joins the prefix where the prefix has the larger sum."""
    m, l, o = split(w, even_cuts(w.s.shape[-1], 2))
    lse = m + torch.log(l)
    weights = torch.where(lse == lse.amax(0), 1.0, 0.0).double()
    return joined(w, m, l, o, weights)


_ANY_MERGE = f"{MERGE}|wrong weights|wrongly"
WRONG: dict[str, tuple[Bug, str]] = {
    "log-sum-exps in base 2 merged in base e": (_weighed(4, _base2), f"{_ANY_MERGE}|log base"),
    "log-sum-exps in base e merged in base 2": (
        _weighed(5, _exp2_of_natural),
        f"{_ANY_MERGE}|log base",
    ),
    "the last split's log-sum-exp in base 2": (
        _weighed(3, _base2_of_one),
        f"{_ANY_MERGE}|log base|{TWICE}",
    ),
    "splits weighed by their lengths": (_weighed(5, _by_length), _ANY_MERGE),
    "splits weighed at most like the first": (_weighed(4, _capped_weights), _ANY_MERGE),
    "log-sum-exps with heads and rows exchanged": (_weighed(3, _other_heads), _ANY_MERGE),
    "log-sum-exps of the next head": (_weighed(6, _next_heads), _ANY_MERGE),
    "weights of two splits exchanged": (_weighed(2, _flipped), _ANY_MERGE),
    "a half of what was there, in a chain": (_weighed(4, _pairwise), _ANY_MERGE),
    "splits weighed by their maxima": (_maxima, _ANY_MERGE),
    "undivided splits merged as divided ones": (_undivided, f"{_ANY_MERGE}|{DIVISOR}|{FACTOR}"),
    "the larger of two splits alone": (_prefix_alone, f"{_ANY_MERGE}|{LOST}|small weights"),
    "the first third merged twice": (
        lambda w: _uneven(w, even_cuts(w.s.shape[-1], 3)),
        f"{TWICE}|{_ANY_MERGE}|keys by a factor",
    ),
    "the remainder of equal splits": (scored(_remainder), LOST),
    "the last of six splits never merged": (scored(_five_of_six), LOST),
    "keys where splits meet in both": (_bounds_twice, f"{TWICE}|weights of keys"),
    "the last page of a prefix in both kernels": (
        _prefix_twice,
        f"{TWICE}|keys by a factor|weights of keys",
    ),
    "half of a cluster's output missing": (
        _half_of_cluster,
        "V read as 0|V read some|V without|V by a factor",
    ),
    "a block's own part for its neighbour's": (_own_twice, f"{LOST}|{KEYS}|{TWICE}"),
    "V in a zigzag, K in order": (valued(_zigzag), V_KEYS),
    "K and V in a zigzag under a mask in order": (
        _zigzag_of_both,
        f"{KEYS}|mask|window|{LOST}",
    ),
    "parts divided by their own sums and added": (_own_log_sum, f"{_ANY_MERGE}|{FACTOR}"),
    "additions to the output of another request": (
        _added_to_old,
        "the output of|another row|another request|uninitialised|out with",
    ),
    "one device of a ring skipped": (scored(_skipped_step), f"{LOST}|another mask"),
    "V one step behind in a ring": (valued(_v_of_ring), V_KEYS),
}
"""Name: the bug, and a pattern that a right name for it matches."""
ASKED: dict[str, Asked] = {"K and V in a zigzag under a mask in order": Asked(window_left=63)}
"""What a bug needs to be asked for."""
