"""Bugs in heads, requests and rows, and in how the output is stored."""

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.sixteenth.frame import (
    both,
    for_queries,
    in_group,
    kept,
    of_kv_heads,
    reading,
    weights,
)
from labkernels.measure.strangers.wrong import Work, attend, stored

PAD = 8


def _by_kv_head(index) -> Bug:
    """Return a bug in which query head h reads K and V of KV head index(work, h)."""

    def change(w: Work, x):
        heads = of_kv_heads(w, x)
        return heads[:, index(w, torch.arange(x.shape[1])) % heads.shape[1]]

    return both(change)


def _two_ranks(w: Work, out):
    """Two ranks hold every second head, and their outputs are put one after the other."""
    head = torch.arange(out.shape[1])
    return out[:, torch.cat([head[0::2], head[1::2]])]


def _unpacked(w: Work, out):
    """The rows of a group lie head by head, and are read row by row."""
    packed = out.unflatten(1, (-1, w.call.group)).flatten(2, 3)
    return packed.unflatten(2, (out.shape[2], -1)).transpose(2, 3).flatten(1, 2)


def _starts_early(w: Work, x):
    """Requests lie one after the other, and each starts one key earlier than the one before."""
    requests, keys = x.shape[0], x.shape[2]
    index = torch.arange(requests)[:, None] * (keys - 1) + torch.arange(keys)
    return x.transpose(1, 2).flatten(0, 1)[index].transpose(1, 2)


def _packed_query_late(w: Work):
    """Queries of all requests lie one after the other, and each is read one row late."""
    rows = w.q.transpose(1, 2).flatten(0, 1)
    late = (torch.arange(len(rows)) + 1).clamp(max=len(rows) - 1)
    q = rows[late].unflatten(0, (len(w.q), -1)).transpose(1, 2)
    return attend(w.scores(q=q), w.v, w.call.q.dtype)


def _flat(w: Work, x):
    """Return the channels of all KV heads of a key in one row."""
    return of_kv_heads(w, x).transpose(1, 2).flatten(2)


def _of_flat(w: Work, flat, channels: int):
    return for_queries(w, flat.unflatten(2, (-1, channels)).transpose(1, 2))


def _channel_major(w: Work, x):
    """The channels of a key lie channel by channel, not head by head."""
    heads = x.shape[1] // w.call.group
    return for_queries(w, _flat(w, x).unflatten(2, (-1, heads)).permute(0, 3, 1, 2))


def _half_a_head_on(w: Work, x):
    return _of_flat(w, _flat(w, x).roll(-(x.shape[-1] // 2), -1), x.shape[-1])


def _pooled(w: Work, x):
    return of_kv_heads(w, x).mean(1, keepdim=True).expand_as(x)


def _padded_stride(w: Work, out):
    """Rows are stored at the stride of a padded row."""
    wide = torch.cat([out, torch.zeros_like(out[..., :1]).expand(*out.shape[:3], PAD)], -1)
    return wide.flatten(1)[:, : out[0].numel()].reshape(out.shape)


def _pairs_of_a_quad(w: Work, out):
    """The second and the third pair of each eight channels are swapped."""
    channel = torch.arange(out.shape[-1])
    last = len(channel) // 8 * 8
    order = channel[:last].unflatten(0, (-1, 4, 2))[:, [0, 2, 1, 3]].flatten()
    return out[..., torch.cat([order, channel[last:]])]


def _last_channels_of_another(w: Work, out):
    return torch.cat([out[..., :-16], out.roll(1, 1)[..., -16:]], -1)


def _odd_channels_of_another(w: Work, out):
    odd = torch.arange(out.shape[-1]) % 2 == 1
    return torch.where(odd, out.roll(-1, 1), out)


def _lse_in_the_way(w: Work, out):
    lse = torch.logsumexp(w.s, -1, keepdim=True)
    return torch.cat([lse.to(out.dtype), out[..., 1:]], -1)


def _query_added(w: Work, out):
    """The residual is the query, which the next layer adds once more."""
    channels = min(w.q.shape[-1], out.shape[-1])
    added = (out[..., :channels].double() + w.q[..., :channels]).to(out.dtype)
    return torch.cat([added, out[..., channels:]], -1)


def _odd_heads_unwritten(w: Work, out):
    """The memory of odd heads held the first value of their KV head before."""
    odd = torch.arange(out.shape[1]) % 2 == 1
    return torch.where(odd[:, None, None], w.v[:, :, :1].to(out.dtype), out)


def _straight_line(w: Work):
    """1 / l is a straight line over each octave of l, without a step that improves it."""
    p = weights(w)
    part, power = torch.frexp(p.sum(-1, keepdim=True))
    inverse = torch.ldexp(48 / 17 - 32 / 17 * part, -power)
    return (kept(w, p) @ w.v * inverse).to(w.call.q.dtype)


def _grid_by_heads(w: Work, out):
    """The number of a block is split into request and head, as if requests ran fastest."""
    return out.flatten(0, 1).unflatten(0, (out.shape[1], -1)).transpose(0, 1)


BUGS: dict[str, Bug] = {
    "KV head is h + 1 over the group": _by_kv_head(lambda w, h: (h + 1) // w.call.group),
    "KV head is h over the KV heads": _by_kv_head(lambda w, h: h // w.call.k.shape[1]),
    "heads of two ranks one after the other": stored(_two_ranks),
    "rows of packed groups unpacked the other way": stored(_unpacked),
    "each request starts one key earlier": both(_starts_early),
    "packed queries one row late": _packed_query_late,
    "heads of a group write over each other": stored(
        lambda w, out: in_group(w, out, [w.call.group - 1] * w.call.group)
    ),
    "V of all heads channel by channel": reading(v=_channel_major),
    "K half a head further": reading(k=_half_a_head_on),
    "V's heads pooled into their mean": reading(v=_pooled),
    "rows stored at a padded stride": stored(_padded_stride),
    "pairs of a quad in another order": stored(_pairs_of_a_quad),
    "last 16 channels of the head before": stored(_last_channels_of_another),
    "odd channels of the head after": stored(_odd_channels_of_another),
    "log-sum-exp over the first channel": stored(_lse_in_the_way),
    "Q added to the output": stored(_query_added),
    "odd heads keep the first value": stored(_odd_heads_unwritten),
    "1 / l by a straight line": _straight_line,
    "request and head of a block mixed up": stored(_grid_by_heads),
}
"""By name: a function of the work that returns the wrong output."""
