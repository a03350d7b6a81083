"""Bugs of the fourth set in queries, rows and channels: where each is read and stored."""

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.wrong import Work, attend, masked, places, scored, stored

_CHANNELS = "channels"
_ADDED = "added|accumul"


def _half_width(w: Work):
    half = w.q.shape[-1] // 2
    s = masked(w.q[..., :half] @ w.k[..., :half].mT * w.call.scale, w.hidden)
    out = attend(s, w.v, w.call.q.dtype)
    out[..., out.shape[-1] // 2 :] = 0
    return out


def _one_row(w: Work):
    """One head of the last query lacks the first tile."""
    s = w.s.clone()
    s[:, 0, -1, :16] = -torch.inf
    return attend(s, w.v, w.call.q.dtype)


def _late_queries_of_early(w: Work):
    q, half = w.q.clone(), w.q.shape[2] // 2
    if half:
        q[:, :, half : 2 * half] = w.q[:, :, :half]
    return w.scores(q=q)


def _halves_of_heads(w: Work):
    half = w.q.shape[-1] // 2
    return w.scores(q=torch.cat([w.q[..., :half], w.q.roll(-1, 1)[..., :half]], -1))


def _channel_pairs(x):
    return x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


def _within_8(out):
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    return out.unflatten(-1, (-1, 8))[..., order].flatten(-2)


def _rows_8_apart(out):
    n = out.shape[2]
    index = torch.arange(n) ^ 8
    return out[:, :, torch.where(index < n, index, torch.arange(n))]


def _first_channels_of_the_next_head(out):
    return torch.cat([out.roll(-1, 1)[..., :8], out[..., 8:]], -1)


def _not_zeroed(w: Work):
    """The accumulator of a head begins with that of the head before."""
    p = torch.exp(w.s - w.s.amax(-1, keepdim=True))
    o, l = p @ w.v, p.sum(-1, keepdim=True)
    before = o.roll(1, 1)
    before[:, 0] = 0
    return ((o + before) / l).to(w.call.q.dtype)


def _of_the_call_before(w: Work, out):
    """Return the output with every second query, or head, from a call with other queries."""
    q = torch.randn(w.q.shape, generator=torch.Generator().manual_seed(11)).double()
    old = attend(w.scores(q=q), w.v, w.call.q.dtype)
    axis = 2 if out.shape[2] > 1 else 1
    shape = [1, 1, 1, 1]
    shape[axis] = out.shape[axis]
    return torch.where((torch.arange(out.shape[axis]) % 2 == 1).reshape(shape), old, out)


def _own_values(w: Work, out):
    last = places(w)[0][:, 0]
    return (out.double() + w.v[:, :, last]).to(out.dtype)


def _scales_of_channels(out):
    factors = 1 + 0.3 * torch.cos(torch.arange(out.shape[-1]) * 0.9)
    return (out.double() * factors).to(out.dtype)


def _lost_bits(out):
    """A store of 8 bits, converted up again."""
    return out.float().to(torch.float8_e4m3fn).to(out.dtype)


ROWS: dict[str, tuple[Bug, str]] = {
    "width of 64 in a kernel for 128": (_half_width, _CHANNELS),
    "one row lacks a tile": (_one_row, "left out|window|mask|causal"),
    "late queries read early ones": (scored(_late_queries_of_early), "Q of|another row|quer"),
    "q of the first head of a group": (
        scored(
            lambda w: w.scores(
                q=w.q[:, torch.arange(w.q.shape[1]) // max(2, w.call.group) * max(2, w.call.group)]
            )
        ),
        "Q of|another row|quer",
    ),
    "upper half of q of the next head": (scored(_halves_of_heads), "channels|Q of|quer"),
    "pairs of channels of K swapped": (
        scored(lambda w: w.scores(k=_channel_pairs(w.k))),
        _CHANNELS,
    ),
    "channels turned within 8": (stored(lambda w, out: _within_8(out)), _CHANNELS),
    "rows 8 apart swapped": (stored(lambda w, out: _rows_8_apart(out)), "another row|quer"),
    "first channels of the next head": (
        stored(lambda w, out: _first_channels_of_the_next_head(out)),
        "channels|another row|head",
    ),
    "accumulator of the head before": (_not_zeroed, _ADDED),
    "rows of the call before": (
        stored(_of_the_call_before),
        "uninitialised|never written|overwritten|another row|stale",
    ),
    "own value added": (stored(_own_values), _ADDED),
    "scales of channels forgotten": (
        stored(lambda w, out: _scales_of_channels(out)),
        "factor|scale|channel",
    ),
    "output in e4m3": (stored(lambda w, out: _lost_bits(out)), "rounded|e4m3|8 bits"),
}
"""Name: the bug, and a pattern that a right name for it matches."""
