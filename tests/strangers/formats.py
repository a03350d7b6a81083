"""Bugs of formats, of scales, and of what is taken off before a format."""

import torch

from labkernels.measure.strangers.wrong import Work, scored
from tests.strangers.frame import (
    largest,
    reading,
    summed,
)


def _blocks(x, size: int, dim: int = -1):
    """Return x padded with zeros to whole blocks along a dimension, as [..., blocks, size, ...]."""
    short = -x.shape[dim] % size
    shape = list(x.shape)
    shape[dim] = short
    return torch.cat([x, x.new_zeros(shape)], dim).unflatten(dim, (-1, size))


def _by_blocks(x, size: int, dim: int, change):
    """Return x changed block by block: change(blocks, the dimension inside a block)."""
    blocks = _blocks(x, size, dim)
    return change(blocks, dim).flatten(dim - 1, dim).narrow(dim, 0, x.shape[dim])


def _int4_by_token(w: Work, v):
    low, high = v.amin(-1, keepdim=True), v.amax(-1, keepdim=True)
    step = torch.where(high > low, (high - low) / 15, torch.ones_like(low))
    return torch.round((v - low) / step) * step + low


def _in_pairs(w: Work, k):
    channels = torch.arange(k.shape[-1])
    other = channels ^ 1
    return k[..., torch.where(other < len(channels), other, channels)]


def _scales_of_channels(w: Work, k):
    step = largest(k, 2)
    return k / step * step.roll(1, -1)


def _scales_of_tokens(w: Work, v):
    step = largest(v, 3)
    return v / step * step.roll(1, 2)


def _first_scale(w: Work, v):
    return _by_blocks(v, 16, -2, lambda x, dim: x / largest(x, -2, -1) * _first(x))


def _first(x):
    return largest(x, -2, -1)[..., :1, :, :]


def _saturated(w: Work, v):
    def clipped(x, dim):
        top = largest(x, dim) / 2
        return x.clamp(-top, top)

    return _by_blocks(v, 32, -1, clipped)


def _second_scale(w: Work, v):
    return v * 6 / largest(v, 2, 3)


def _other_e4m3(w: Work, k):
    """Return numbers of e4m3fnuz whose bits are read as e4m3fn: twice as large."""
    return 2 * k.float().to(torch.float8_e4m3fnuz).double()


def _wrapped(w: Work, k):
    step = largest(k, 2, 3) / 160
    return (torch.remainder(torch.round(k / step) + 128, 256) - 128) * step


def _signs(w: Work, k):
    return k.sign() * k.abs().mean(-1, keepdim=True)


def _high_bytes(w: Work, v):
    """Return the high bytes of fp16 numbers."""
    bits = v.half().view(torch.int16) & -256
    return bits.view(torch.float16).double()


def _less_mean_of(size: int):
    def change(w: Work, x):
        return _by_blocks(x, size, -2, lambda y, dim: y - y.mean(-2, keepdim=True))

    return change


def _hadamard(w: Work, v):
    """Return V turned by a Hadamard matrix of 16 channels, as far as they go."""
    turn = torch.ones(1, 1, dtype=torch.float64)
    for _ in range(4):
        turn = torch.cat([torch.cat([turn, turn], 1), torch.cat([turn, -turn], 1)])
    size = v.shape[-1] // 16 * 16
    turned = v[..., :size].unflatten(-1, (-1, 16)) @ turn / 4 if size else v[..., :0, None]
    return torch.cat([turned.flatten(-2), v[..., size:]], -1)


def _int8_weights(w: Work, p):
    return torch.round(127 * p) / 127 @ w.v, p.sum(-1, keepdim=True)


def _e5m2(x):
    return x.float().to(torch.float8_e5m2).double()


def _normed_again(w: Work):
    return w.scores(q=w.q / (w.q**2).mean(-1, keepdim=True).sqrt().clamp(min=1e-9))


BUGS = {
    "V in int4 by token": reading(v=_int4_by_token),
    "neighbouring channels of K swapped": reading(k=_in_pairs),
    "K's scales of channels one channel late": reading(k=_scales_of_channels),
    "V's scales of tokens one token late": reading(v=_scales_of_tokens),
    "the first block's scale for all of V": reading(v=_first_scale),
    "V saturates at half of each block's largest": reading(v=_saturated),
    "V's scale of the tensor left out": reading(v=_second_scale),
    "K in e4m3fnuz read as e4m3fn": reading(k=_other_e4m3),
    "K in int8 that wraps around": reading(k=_wrapped),
    "K by its signs": reading(k=_signs),
    "the low bytes of V lost": reading(v=_high_bytes),
    "K less the mean of each 64 keys": reading(k=_less_mean_of(64)),
    "V's means of 48 keys not added back": reading(v=_less_mean_of(48)),
    "V turned by a Hadamard matrix for good": reading(v=_hadamard),
    "the weights in steps of 1/127": summed(_int8_weights),
    "the scores in e5m2": scored(lambda w: _e5m2(w.s)),
    "queries normalised in the kernel again": scored(_normed_again),
}
