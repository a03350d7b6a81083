"""Bugs of the grid and the epilogue: which rows a block computes, how it divides and stores."""

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.thirteenth.frame import (
    CHANNELS,
    NEVER,
    ROWS,
    SUM,
    V_READ,
    by_kv_head,
    of_sums,
    turned,
    whole,
)
from labkernels.measure.strangers.wrong import Work, attend, places, stored


def _token_by_token(w: Work, out):
    """Rows of a group are stored [token, head] and read [head, token]."""
    rows = by_kv_head(w, out)
    return rows.transpose(2, 3).reshape(rows.shape).flatten(1, 2)


def _grid_exchanged(w: Work, out):
    """The grid is [head, request], and its index is taken for [request, head]."""
    return out.transpose(0, 1).reshape(out.shape)


def _left_out(w: Work, out):
    """A block that met an empty work item skips the item after it, too: one in three heads."""
    heads = out.clone().flatten(0, 1)
    heads[2::3] = 0
    return heads.reshape(out.shape)


def _no_tail(w: Work, out):
    out, m = out.clone(), out.shape[2]
    if m > 4:
        out[:, :, m // 4 * 4 :] = 0
    return out


def _overwritten(w: Work, out):
    """Rows of a tile of 8 are counted modulo 8, so that later tiles are stored over the first."""
    new = torch.zeros_like(out)
    for first in range(0, out.shape[2], 8):
        tile = out[:, :, first : first + 8]
        new[:, :, : tile.shape[2]] = tile
    return new


def _chunk_of_another_row(w: Work, out):
    out = out.clone()
    flat = out.flatten(0, 2)
    flat[:, 16:32] = flat.roll(1, 0)[:, 16:32].clone()
    return flat.reshape(out.shape)


def _whole_chunks(w: Work):
    """Channels past a multiple of 64 are neither read nor stored."""

    def cut(x):
        keep = max(64, x.shape[-1] // 64 * 64)
        return torch.cat([x[..., :keep], torch.zeros_like(x[..., keep:])], -1)

    return cut(attend(w.scores(q=cut(w.q)), w.v, w.call.q.dtype))


def _fragment(w: Work, out):
    """Each 16 channels are stored in the order in which a quad of lanes holds them."""
    pairs = torch.tensor([0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15])
    return whole(out, 16, lambda x: x.unflatten(-1, (-1, 16))[..., pairs].flatten(-2))


def _not_cleared(w: Work, p, used):
    o, l = used @ w.v, p.sum(-1, keepdim=True)
    before = o.roll(1, 1)
    before[:, 0] = 0
    return o + before, l


def _table(l):
    """Return 1 / l from a table of 16 steps, without a step of Newton."""
    part, whole = torch.frexp(l)
    return 1 / torch.ldexp(torch.floor(part * 32) / 32, whole)


def _sum_of_head_before(w: Work, p, used):
    return used @ w.v, p.sum(-1, keepdim=True).roll(1, 1)


def _e4m3(out):
    return out.float().clamp(-448, 448).to(torch.float8_e4m3fn).to(out.dtype)


def _turned_output(w: Work, out):
    return turned(out.double(), places(w)[0][:, 0]).to(out.dtype)


def _pooled_queries(w: Work):
    """The queries of a group are averaged, so that its heads have the same weights."""
    q = by_kv_head(w, w.q)
    return attend(
        w.scores(q=q.mean(2, keepdim=True).expand_as(q).flatten(1, 2)), w.v, w.call.q.dtype
    )


WRONG: dict[str, tuple[Bug, str]] = {
    "rows of a group stored token by token": (
        stored(_token_by_token),
        rf"{ROWS}|Q (of another|read)",
    ),
    "request and head exchanged in the grid": (stored(_grid_exchanged), ROWS),
    "work skipped after an item without keys": (stored(_left_out), NEVER),
    "rows past a multiple of four not stored": (stored(_no_tail), NEVER),
    "rows of later tiles stored over the first": (stored(_overwritten), rf"{ROWS}|{NEVER}"),
    "sixteen channels staged by the row before": (
        stored(_chunk_of_another_row),
        rf"{CHANNELS}|another row|elements",
    ),
    "channels past a multiple of 64 skipped": (_whole_chunks, "channels"),
    "channels stored in a fragment's order": (
        stored(_fragment),
        rf"{CHANNELS}|(V|out) in another|{V_READ}",
    ),
    "an accumulator not cleared between heads": (
        of_sums(_not_cleared),
        r"the output of|added|not cleared",
    ),
    "an inverse of l from a table": (
        of_sums(lambda w, p, used: (used @ w.v * _table(p.sum(-1, keepdim=True)), p[..., :1] * 0)),
        SUM,
    ),
    "rows divided by the sum of the head before": (of_sums(_sum_of_head_before), SUM),
    "the output staged in e4m3": (
        stored(lambda w, out: _e4m3(out)),
        r"\bout (in|through|was)|the output (in|rounded)|partial outputs",
    ),
    "the output turned by its place": (
        stored(_turned_output),
        r"RoPE of (V|the output|out)|out turned",
    ),
    "queries of a group averaged": (_pooled_queries, r"\bQ is|Q averaged"),
}
"""Name: the bug, and a pattern that a right name for it matches."""
