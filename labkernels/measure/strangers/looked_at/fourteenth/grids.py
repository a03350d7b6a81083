"""Bugs of who computes what: packed batches, blocks, clusters, rings, splits and their merge."""

import math

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.fourteenth import words
from labkernels.measure.strangers.looked_at.fourteenth.frame import (
    divided,
    hiding,
    keys,
    merged,
    of_both,
    of_q,
    rows,
    seen,
    shares,
    showing,
    spans,
    states,
    weighted,
    weights,
)
from labkernels.measure.strangers.wrong import Work, attend, places, right_output, stored


def _token_early(w: Work, q):
    """Rows of a packed batch start one token early for each request before."""
    b, _, m = q.shape[:3]
    packed = q.transpose(1, 2).flatten(0, 1)
    at = torch.arange(b)[:, None] * (m - 1) + torch.arange(m)
    return packed[at].transpose(1, 2)


def _a_page_early(w: Work):
    twice = torch.ones(w.k.shape[2]).double()
    for split in spans(w, 5)[1:]:
        twice[max(split.start - 16, 0) : split.start] += 1
    return twice


def _requests_fastest(w: Work, x):
    """Block i takes request i % B and head i // B for K and V, but i // H and i % H for Q."""
    b, h = x.shape[:2]
    i = torch.arange(b * h).reshape(b, h)
    return x[i % b, i // b]


def _packed_places(w: Work):
    """Row m of head g of a group is row m * group + g; the mask takes the remainder by M."""
    m, n = w.s.shape[-2:]
    h, group = w.s.shape[1], w.call.group
    row = torch.arange(m) * group + (torch.arange(h) % group)[:, None]
    wrong = keys(w) > (row % m)[..., None] + n - m
    hidden = wrong if w.call.causal else torch.zeros_like(wrong)
    # The head changes the mask here, so the scores are those of no mask.
    s = seen(w, torch.zeros_like(w.hidden)).masked_fill(hidden, -math.inf)
    return attend(s, w.v, w.call.q.dtype)


def _as_the_first_row(w: Work):
    m, n = w.s.shape[-2:]
    last = (rows(w) // 16 * 16 + n - m) // 8 * 8 + 7
    return (keys(w) > last) & w.call.causal


def _tiles_one_short(w: Work):
    m, n = w.s.shape[-2:]
    end = torch.clamp(rows(w) // 16 * 16 + 15, max=m - 1) + n - m if w.call.causal else n - 1
    last = (end + 0 * rows(w)) // 16
    return (keys(w) // 16 == last) & (last > 0) & (keys(w) >= 16)


def _device(w: Work, of):
    return (4 * of // w.k.shape[2]).clamp(max=3)


def _three_steps(w: Work):
    query, key = places(w)
    return (_device(w, key) == (_device(w, query) + 2) % 4) & (key > 0)


def _zigzag(w: Work):
    """Keys lie in eighths 0 7 1 6 2 5 3 4; the mask takes their numbers for their places."""
    n = w.k.shape[2]
    eighths = torch.arange(n).tensor_split(8)
    order = torch.cat([eighths[i] for i in (0, 7, 1, 6, 2, 5, 3, 4)])
    number = torch.empty_like(order)
    number[order] = torch.arange(n)
    return (number > places(w)[0]) & (number > 0) if w.call.causal else w.hidden


def _by_rank(w: Work, out):
    h = out.shape[1]
    ranks = next((r for r in (2, 3, 5) if h % r == 0), 1)
    return out.unflatten(1, (ranks, -1)).transpose(1, 2).flatten(1, 2)


def _prefix_of_its_own(w: Work):
    return (keys(w) < w.k.shape[2] // 2) & (keys(w) > rows(w))


def _empty_suffix(w: Work):
    """A suffix without keys has zeros for an output, and an old log-sum-exp."""
    old = torch.logsumexp(w.s, -1, keepdim=True).roll(1, 0) - 1
    v = torch.cat([w.v, 0 * w.v[:, :, :1]], 2)
    return attend(torch.cat([w.s, old], -1), v, w.call.q.dtype)


def _not_divided(w: Work):
    lse, part = states(w, spans(w, 4))
    l = torch.stack([weights(w.s[..., split]).sum(-1, keepdim=True) for split in spans(w, 4)])
    return (shares(lse) * part * l).sum(0).to(w.call.q.dtype)


def _rows_before_heads(w: Work, lse, part):
    b, h, m = lse.shape[1:4]
    if m == 1:
        return right_output(w)
    read = lse.squeeze(-1).transpose(2, 3).reshape(-1, b, h, m, 1)
    return (shares(read) * part).sum(0)


def _of_the_next_head(w: Work, lse, part):
    part = part.clone()
    part[1:2] = part[1:2].roll(-1, 2)
    return (shares(lse) * part).sum(0)


def _first_lse_kept(w: Work, lse, part):
    out = part[0]
    for i in range(1, len(part)):
        share = torch.sigmoid(lse[i] - lse[0]).nan_to_num()
        out = out * (1 - share) + part[i] * share
    return out


def _one_maximum(w: Work):
    """Four warps take tiles of 16 in turn, and their sums are added as they are."""
    o = l = 0
    for warp in range(4):
        s = w.s.masked_fill(keys(w) // 16 % 4 != warp, -math.inf)
        p = weights(s)
        o, l = o + p @ w.v, l + p.sum(-1, keepdim=True)
    return divided(w, o, l)


WRONG: dict[str, tuple[Bug, str]] = {
    "q of a packed batch one token early for each request": (of_q(_token_early), words.Q_READ),
    "splits that begin a page early": (weighted(_a_page_early), words.TWICE),
    "K and V by a grid whose requests run fastest": (of_both(_requests_fastest), words.GROUPS),
    "places of packed rows by another division": (_packed_places, words.MASK),
    "tiles of keys up to a block's first row": (hiding(_as_the_first_row), words.HIDDEN),
    "list of tiles one entry short": (hiding(_tiles_one_short), words.HIDDEN),
    "both blocks of a cluster take the even tiles": (
        hiding(lambda w: keys(w) // 32 % 2 == 1),
        words.EVEN,
    ),
    "a fourth warp that was not launched": (hiding(lambda w: keys(w) // 8 % 4 == 3), words.LOST),
    "a ring of four with three steps": (hiding(_three_steps), words.HIDDEN),
    "places of keys in a zigzag ring": (showing(_zigzag), words.ORDER),
    "heads by rank after an all-to-all": (stored(_by_rank), words.HEADS),
    "a shared prefix counted with the suffix too": (
        weighted(lambda w: 1.0 + (keys(w) < w.k.shape[2] // 3).double()),
        words.TWICE,
    ),
    "the prefix under a causal mask of its own": (hiding(_prefix_of_its_own), words.HIDDEN),
    "an empty suffix with the log-sum-exp of another request": (_empty_suffix, words.SUFFIX),
    "log-sum-exps of base two merged as natural ones": (
        merged(4, lambda w, lse, part: (shares(lse / math.log(2)) * part).sum(0)),
        f"{words.MERGE}|mixed log base|by 2\\^",
    ),
    "sums of splits not divided before the merge": (_not_divided, words.UNDIVIDED),
    "log-sum-exps with rows before heads": (merged(3, _rows_before_heads), words.ANOTHER_LSE),
    "second split's output of the next head": (merged(3, _of_the_next_head), words.PART),
    "log-sum-exp of the first split kept while others are merged": (
        merged(5, _first_lse_kept),
        words.ANOTHER_LSE,
    ),
    "sums of four warps added as if they had one maximum": (_one_maximum, words.LANES),
}
