"""Bugs in formats of few bits: their scales, their order and their signs."""

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.sixteenth.frame import (
    both,
    largest,
    reading,
    summed,
)
from labkernels.measure.strangers.wrong import Work, attend, keys_of

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def _blocks(x, size: int):
    """Return x with its channels in blocks, or in one block if they are no multiple of a size."""
    return x.unflatten(-1, (-1, size if x.shape[-1] % size == 0 else x.shape[-1]))


def _four_bits(w: Work, v):
    blocks = _blocks(v, 16)
    step = largest(blocks, -1) / 7
    return (torch.round(blocks / step).clamp(-8, 7) * step).flatten(-2)


def _halves_as_pairs(w: Work, k):
    """A byte holds channels i and i + 16 of a block of 32, and is read as 2 i and 2 i + 1."""
    blocks = _blocks(k, 32 if k.shape[-1] % 32 == 0 else 16)
    if blocks.shape[-1] % 2:
        return k
    return torch.stack(blocks.chunk(2, -1), -1).flatten(-2).flatten(-2)


def _scales_of_the_block_before(w: Work, k):
    blocks = _blocks(k, 16)
    size = largest(blocks, -1)
    return (blocks / size * size.roll(1, -2)).flatten(-2)


def _scales_of_the_key_before(w: Work, k):
    size = largest(k, -1)
    return k / size * torch.cat([size[:, :, :1], size[:, :, :-1]], 2)


def _scales_of_the_channel_before(w: Work, k):
    size = largest(k, 2)
    return k / size * size.roll(1, -1)


def _mean_scale_of_the_page(w: Work, v):
    """V has a scale for each key, and is read with the mean of 16 of them."""
    size = largest(v, -1)
    means = torch.cat([page.mean(2, keepdim=True).expand_as(page) for page in size.split(16, 2)], 2)
    return v / size * means


def _scale_of_the_request_before(w: Work, v):
    size = largest(v, 2, 3)
    return v / size * size.roll(1, 0)


def _cut_to_int8(w: Work, p):
    """P is cut to steps of 1 / 127 in the product, and not in the denominator."""
    return torch.floor(127 * p) / 127 @ w.v, p.sum(-1, keepdim=True)


def _unsigned(w: Work, v):
    """Numbers of eight bits with a sign are read without one."""
    step = largest(v, 2, 3) / 127
    whole = torch.round(v / step)
    return torch.where(whole < 0, whole + 256, whole) * step


def _bf16_as_fp16(w: Work, v):
    return v.bfloat16().view(torch.float16).double()


def _e2m1(w: Work, k):
    blocks = _blocks(k, 16)
    scale = largest(blocks, -1) / 6
    grid = torch.tensor(E2M1, dtype=torch.float64)
    middles = (grid[1:] + grid[:-1]) / 2
    found = grid[torch.bucketize((blocks / scale).abs(), middles)]
    return (found * scale * blocks.sign()).flatten(-2)


def _two_bits_of_old_keys(w: Work, v):
    """All keys but the last 32 have two bits, with a scale and an offset for 16 channels."""
    blocks = _blocks(v, 16)
    low, high = blocks.amin(-1, keepdim=True), blocks.amax(-1, keepdim=True)
    step = (high - low).clamp(min=1e-12) / 3
    few = (torch.round((blocks - low) / step) * step + low).flatten(-2)
    key = keys_of(w)
    return torch.where((key < len(key) - 32)[:, None], few, v)


def _prefix_without_scales(w: Work, x):
    """Cached keys, three quarters of all, are not multiplied by the scale of 1 / 0.6."""
    key = keys_of(w)
    return torch.where((key < len(key) * 3 // 4)[:, None], 0.6 * x, x)


def _clipped(w: Work):
    """Q saturates at 1.2 times its root mean square."""
    top = 1.2 * (w.q**2).mean(-1, keepdim=True).sqrt()
    return attend(w.scores(q=w.q.clamp(-top, top)), w.v, w.call.q.dtype)


def _pages_of_p(w: Work, p):
    """P in e4m3 of 256 keys at a time has the scale of the first 32 of them."""
    size = torch.cat([largest(part[..., :32], -1).expand_as(part) for part in p.split(256, -1)], -1)
    few = (p / size * 256).clamp(max=448).float().to(torch.float8_e4m3fn).double()
    return few * size / 256 @ w.v, p.sum(-1, keepdim=True)


BUGS: dict[str, Bug] = {
    "V in four bits by 16 channels": reading(v=_four_bits),
    "K's halves of bytes read as pairs": reading(k=_halves_as_pairs),
    "K's scales of the block before": reading(k=_scales_of_the_block_before),
    "K's scales of the key before": reading(k=_scales_of_the_key_before),
    "K's scales of the channel before": reading(k=_scales_of_the_channel_before),
    "V with its page's mean scale": reading(v=_mean_scale_of_the_page),
    "V's scale of the request before": reading(v=_scale_of_the_request_before),
    "P cut to int8": summed(_cut_to_int8),
    "V's int8 read without a sign": reading(v=_unsigned),
    "V in bf16 read as fp16": reading(v=_bf16_as_fp16),
    "K in e2m1 by 16 channels": reading(k=_e2m1),
    "V in two bits but for the last 32": reading(v=_two_bits_of_old_keys),
    "the cached prefix without its scales": both(_prefix_without_scales),
    "Q clipped at 1.2 of its size": _clipped,
    "P saturates at the first keys' scale": summed(_pages_of_p),
}
"""By name: a function of the work that returns the wrong output."""
