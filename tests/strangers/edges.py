"""Bugs before the scores and after the sums: rotations of Q and K, and the stored output."""

import torch

from labkernels.measure.strangers.wrong import Work, keys_of, scored, stored
from tests.strangers.frame import (
    kept,
    reading,
    summed,
    turned,
)


def _rows(out):
    """Return the rows of all heads of a request one after another: [B, Hq M, Dv]."""
    return out.flatten(1, 2)


def _by_head_first(w: Work, out):
    """Rows of a group are packed token by token and stored head by head."""
    group = out.unflatten(1, (-1, w.call.group))
    return group.transpose(2, 3).reshape(out.shape)


def _upper_of_row_before(w: Work, out):
    half, rows = out.shape[-1] // 2, _rows(out)
    return torch.cat([rows[..., :half], rows.roll(1, 1)[..., half:]], -1).view(out.shape)


def _through_e4m3(w: Work, out):
    return out.float().to(torch.float8_e4m3fn).to(out.dtype)


def _saturated(w: Work, out):
    top = out.abs().amax((2, 3), keepdim=True) / 3
    return torch.minimum(torch.maximum(out, -top), top)


def _mean_of_group(w: Work, out):
    group = out.double().unflatten(1, (-1, w.call.group))
    return group.mean(2, keepdim=True).expand_as(group).flatten(1, 2).to(out.dtype)


def _gated(w: Work, out):
    gate = torch.ones(out.shape, dtype=torch.float64)
    channels = min(out.shape[-1], w.q.shape[-1])
    gate[..., :channels] = torch.sigmoid(w.q[..., :channels])
    return (out.double() * gate).to(out.dtype)


def _normed(w: Work, out):
    x = out.double()
    return (x / (x**2).mean(-1, keepdim=True).sqrt().clamp(min=1e-9)).to(out.dtype)


def _blocks_transposed(w: Work, out):
    x = _rows(out).clone()
    rows, channels = (size // 8 * 8 for size in x.shape[-2:])
    blocks = x[:, :rows, :channels].unflatten(-1, (channels // 8, 8))
    blocks = blocks.unflatten(1, (rows // 8, 8)).transpose(2, 4)
    x[:, :rows, :channels] = blocks.flatten(-2).flatten(1, 2)
    return x.view(out.shape)


def _pairs_from_the_last(w: Work, out):
    row = torch.arange(out.shape[2])
    other = (len(row) - 1) // 2 * 2 - row // 2 * 2 + row % 2
    return out[:, :, torch.where(other < len(row), other, row)]


def _in_registers(w: Work, out):
    """Return channels in the order in which a thread's registers hold 16 of them."""
    order = torch.tensor([0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15])
    channel = torch.arange(out.shape[-1])
    other = channel // 16 * 16 + order[channel % 16]
    return out[..., torch.where(other < len(channel), other, channel)]


def _lower_divided(w: Work, p):
    l = p.sum(-1, keepdim=True)
    upper = torch.arange(w.v.shape[-1]) >= w.v.shape[-1] // 2
    return kept(w, p) @ w.v, torch.where(upper, torch.ones_like(l), l)


def _divided_twice(w: Work, p):
    return kept(w, p) @ w.v, p.sum(-1, keepdim=True) ** 2


def _places(w: Work):
    return torch.arange(w.q.shape[2]) + w.k.shape[2] - w.q.shape[2]


def _opposite(w: Work):
    return w.scores(turned(w.q, _places(w)), turned(w.k, -keys_of(w)))


def _places_in_chunk(w: Work):
    return w.scores(q=turned(w.q, torch.arange(w.q.shape[2]) - _places(w)))


def _new_twice(w: Work, k):
    key = keys_of(w)
    return turned(k, torch.where(key >= k.shape[2] - w.q.shape[2], key, 0 * key))


def _angles_in_bf16(w: Work, k):
    """Return K turned by what rounding to bf16 adds to the angles of its places."""
    half = k.shape[-1] // 2
    speed = 1e4 ** (-torch.arange(half, dtype=torch.float64) / max(half, 1))
    angle = keys_of(w)[:, None] * speed
    more = angle.bfloat16().double() - angle
    a, b, rest = k[..., :half], k[..., half : 2 * half], k[..., 2 * half :]
    cos, sin = more.cos(), more.sin()
    return torch.cat([a * cos - b * sin, a * sin + b * cos, rest], -1)


def _stretched(w: Work, k):
    key = keys_of(w)
    return turned(k, torch.where(key >= 32, -0.5 * (key - 32), 0.0 * key))


def _old_bias(w: Work):
    return w.s + 0.7 * torch.sin(1.7 * keys_of(w).double() ** 1.5)


BUGS = {
    "packed rows stored head by head": stored(_by_head_first),
    "upper channels stored by the row before": stored(_upper_of_row_before),
    "the output through e4m3": stored(_through_e4m3),
    "the output saturates at a third of its largest": stored(_saturated),
    "the mean of a group's outputs": stored(_mean_of_group),
    "the output gated by Q": stored(_gated),
    "the output normed to a mean square of 1": stored(_normed),
    "8 by 8 blocks of the output transposed": stored(_blocks_transposed),
    "pairs of rows stored from the last": stored(_pairs_from_the_last),
    "channels stored in the order of registers": stored(_in_registers),
    "upper channels not divided": summed(_lower_divided),
    "divided twice by the denominator": summed(_divided_twice),
    "K turned by its place in a page": reading(k=lambda w, k: turned(k, keys_of(w) % 16)),
    "Q and K turned in opposite directions": scored(_opposite),
    "Q turned by its row for its place": scored(_places_in_chunk),
    "new keys turned twice": reading(k=_new_twice),
    "angles of K in bf16": reading(k=_angles_in_bf16),
    "half the angle after 32 keys": reading(k=_stretched),
    "an old bias of keys left on": scored(_old_bias),
}
