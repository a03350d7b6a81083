"""Bugs of the sixteenth set where results meet: splits, warps, a ring, and what is stored."""

import math
from collections.abc import Callable

import torch

from labkernels.measure.strangers.looked_at.sixteenth import frame
from labkernels.measure.strangers.wrong import (
    Work,
    attend,
    keys_of,
    keys_read,
    merged,
    stored,
)


def _transposed(w: Work, lse, part):
    """Read log-sum-exps [heads, queries] as [queries, heads]."""
    heads, queries = lse.shape[2:4]
    wrong = lse.flatten(2).reshape(*lse.shape[:2], queries, heads).mT[..., None]
    return frame.blended(wrong if queries > 1 else lse.roll(1, 2), part)


def _last_from_before(w: Work, lse, part):
    """Weigh the last split as the one before it, whose log-sum-exp was written late."""
    return frame.blended(torch.cat([lse[:-1], lse[-2:-1] if len(lse) > 1 else lse[-1:]]), part)


def _in_bf16(w: Work, lse, part):
    return frame.blended(lse.bfloat16().double(), part)


def _of_log2(w: Work, lse, part):
    """Take log-sum-exps in base 2 for natural ones."""
    return frame.blended(lse * math.log2(math.e), part)


def _first_again(w: Work, lse, part):
    return frame.blended(torch.cat([lse, lse[:1]]), torch.cat([part, part[:1]]))


def _five_at_most(w: Work):
    """Join five of seven splits, for which the workspace has room."""
    size = -(-w.s.shape[-1] // 7)
    return frame.joined(size, lambda w, lse, part: frame.blended(lse[:5], part[:5]))(w)


def _other_parts(w: Work, lse, part):
    """Join the partial outputs of the next head of the group by the head's own sums."""
    group = w.call.group
    index = [(g + 1) % group for g in range(group)]
    other = torch.stack([frame.in_group(w, x, index) for x in part])
    return frame.blended(lse, other)


def _two_at_a_time(w: Work, lse, part):
    """Join one split after the other, and forget to add the log-sum-exp of what is joined."""
    total, out = lse[0], part[0]
    for new, here in zip(lse[1:], part[1:], strict=True):
        by = frame.shares(torch.stack([total, new]))
        out = by[0] * out + by[1] * here
        total = torch.maximum(total, new)
    return out


def _share_added_twice(w: Work, lse, part):
    """Add the second split's share of the output twice, by two blocks that both fix it up."""
    by = frame.shares(lse)
    return (by * part).sum(0) + (by * part)[min(1, len(part) - 1)]


def _lost_numerator(w: Work):
    """Lose the last third of the keys in o, but not in l."""
    p = frame.weights(w)
    some = p * (keys_of(w) < max(1, 2 * w.s.shape[-1] // 3))
    return frame.over(w, frame.kept(w, some) @ w.v, p.sum(-1, keepdim=True))


def _warps(w: Work):
    """Add o of four warps, which take tiles of 16 in turn, as it is, but their sums rightly."""
    warp = keys_of(w) // 16 % 4
    o = torch.zeros(()).double()
    for one in range(4):
        s = w.s.masked_fill(warp != one, -math.inf)
        m = s.amax(-1, keepdim=True)
        o = o + torch.exp(s - m.masked_fill(m == -math.inf, 0.0)) @ w.v
    return frame.over(w, o, frame.weights(w).sum(-1, keepdim=True))


def _ring_block_overwritten(w: Work):
    """Read a ring's second block for the third, which has not come yet."""
    key, size = keys_of(w), -(-w.k.shape[2] // 4)
    return torch.where(key // size == 2, key - size, key)


def _split_again(w: Work):
    """Begin each split of 40 keys one key early."""
    index = torch.cat([keys_of(w), keys_of(w)[40::40] - 1])
    return attend(w.s[..., index], w.v[:, :, index], w.call.q.dtype)


def _one_row_late(w: Work, out):
    """Store rows of all requests, one after the other, one row too late."""
    rows = out.transpose(1, 2).flatten(0, 1)
    return rows.roll(1, 0).unflatten(0, (out.shape[0], out.shape[2])).transpose(1, 2)


def _packed_as_unpacked(w: Work, out):
    """Store packed rows [query, head of the group] as [head of the group, query]."""
    b, heads, m, d = out.shape
    rows = out.reshape(b, heads // w.call.group, w.call.group, m, d).transpose(2, 3)
    return rows.reshape(out.shape)


def _last_tile_moved(w: Work, out, tile: int = 16):
    """Let the last tile of rows end where the rows end, and store it where it should begin."""
    m = out.shape[2]
    first = (m - 1) // tile * tile
    row = torch.arange(m)
    return out[:, :, torch.where(row >= first, (row - (tile - (m - first))).clamp(min=0), row)]


def _last_rows_of_another(w: Work, out, tile: int = 4):
    """Leave rows past the last whole tile of 4 as the request before has left them."""
    row = torch.arange(out.shape[2])
    return torch.where((row >= out.shape[2] // tile * tile)[:, None], frame.of_request(out), out)


def _even_for_odd(w: Work, out):
    """Pack the even channel into both halves of a pair."""
    return out[..., torch.arange(out.shape[-1]) // 2 * 2]


def _first_channels_of_another(w: Work, out, n: int = 16):
    """Store the first 16 channels one head too far."""
    first = torch.arange(out.shape[-1]) < n
    return torch.where(first, out.roll(1, 1), out)


def _added(w: Work, out):
    """Add to what the request before has left in the buffer."""
    return out + frame.of_request(out)


def _saturated(w: Work, out):
    """Saturate at half of the largest output, as a store in eight bits with a fixed scale does."""
    top = 0.5 * out.abs().amax()
    return torch.maximum(torch.minimum(out, top), -top)


def _shared_l(w: Work):
    """Divide the rows of a group's heads by the sum of its first head."""
    p = frame.weights(w)
    l = p.sum(-1, keepdim=True)[:, :: w.call.group].repeat_interleave(w.call.group, 1)
    return frame.over(w, frame.kept(w, p) @ w.v, l)


def _half_of_last_head(w: Work, out):
    """Leave the second half of each KV head's last query head unwritten."""
    out = out.clone()
    out[:, w.call.group - 1 :: w.call.group, :, out.shape[-1] // 2 :] = 0
    return out


BUGS: dict[str, Callable] = {
    "log-sum-exps of splits transposed": frame.joined(32, _transposed),
    "the last split weighed as the one before": frame.joined(32, _last_from_before),
    "log-sum-exps in bf16": frame.joined(40, _in_bf16),
    "log2 sums joined by exp": frame.joined(32, _of_log2),
    "the first split joined again": frame.joined(48, _first_again),
    "splits after the fifth not joined": _five_at_most,
    "partial outputs of the next head": frame.joined(40, _other_parts),
    "the sum so far not added up": frame.joined(16, _two_at_a_time),
    "a fix-up by two blocks": frame.joined(40, _share_added_twice),
    "splits by their maxima alone": merged(24, lambda m, l: torch.exp(m - m.amax(0)) * (l > 0)),
    "the last third lost in o": _lost_numerator,
    "o of four warps added as it is": _warps,
    "a ring's third block not yet there": keys_read(_ring_block_overwritten),
    "splits begin one key early": _split_again,
    "rows of all requests one row late": stored(_one_row_late),
    "packed rows stored as unpacked": stored(_packed_as_unpacked),
    "the last tile of rows moved": stored(_last_tile_moved),
    "rows past the last four from another request": stored(_last_rows_of_another),
    "even channels in place of odd ones": stored(_even_for_odd),
    "16 channels one head too far": stored(_first_channels_of_another),
    "added to another request's output": stored(_added),
    "the output saturates": stored(_saturated),
    "one denominator for a group": _shared_l,
    "half of the last head of a group unwritten": stored(_half_of_last_head),
    "scaled up for a dropout that is off": stored(lambda w, out: out / 0.9),
}
"""Name: the bug."""
