"""Bugs of the sixteenth set in formats: scales, zero points, few bits, and functions too coarse."""

import math
from collections.abc import Callable

import torch

from labkernels.measure.strangers.looked_at.sixteenth import frame
from labkernels.measure.strangers.wrong import Work, scored, stored


def _in_steps(x, top, most: int):
    """Return x in whole steps, of which `most` reach the largest number."""
    return (x / top * most).round().clamp(-most, most) * top / most


def _k_by_groups(w: Work, x):
    """Keep K in four bits, with a scale for each 32 channels of a key."""
    return torch.cat([_in_steps(part, frame.largest(part, -1), 7) for part in x.split(32, -1)], -1)


def _clipped_to_first_tile(w: Work, x):
    """Clip V at the largest number of a channel among its first 16 keys."""
    top = frame.largest(x[:, :, :16], 2)
    return x.clamp(-top, top)


def _scale_of_k(w: Work, x):
    """Take K's scale, the largest number of a head, for V's."""
    return x * frame.largest(w.k, 2, 3) / frame.largest(w.v, 2, 3)


def _groups_off(w: Work, x, size: int = 16):
    """Take for each 16 channels of V the scale of the 16 before them."""
    tops = [frame.largest(part, -1) for part in x.split(size, -1)]
    found = zip(x.split(size, -1), tops, tops[-1:] + tops[:-1], strict=True)
    return torch.cat([part / top * other for part, top, other in found], -1)


def _scales_swizzled(w: Work, x, size: int = 4):
    """Take scales of blocks of 4 by 4 keys in the order of a swizzle, where they lie in a line."""
    top = frame.largest(x, -1)
    n = x.shape[2] // size**2 * size**2
    moved = top.clone()
    moved[:, :, :n] = top[:, :, :n].unflatten(2, (-1, size, size)).transpose(3, 4).flatten(2, 4)
    return x / top * moved


def _zero_points_twice(w: Work, x):
    """Take off the zero point of each key twice."""
    return x - 0.25 * x.amin(-1, keepdim=True)


def _nibbles(w: Work, x):
    """Unpack the two numbers of a byte in the wrong order."""
    channel = torch.arange(x.shape[-1]) ^ 1
    return x[..., torch.where(channel < x.shape[-1], channel, channel - 1)]


def _mean_off(w: Work, x):
    """Take off the mean of V in each channel, and do not add it to the output."""
    return x - x.mean(2, keepdim=True)


def _sums_of_steps(w: Work):
    """Keep the upper half of each sum's 32 bits, in place of bf16 rounded, for every 8 channels."""
    s = torch.zeros_like(w.s).masked_fill(w.hidden, 0.0)
    for q, k in zip(w.q.split(8, -1), w.k.split(8, -1), strict=True):
        bits = (s + q @ k.mT).float().view(torch.int32) & ~0xFFFF
        s = bits.view(torch.float32).double()
    return (s * w.call.scale).masked_fill(w.hidden, -math.inf)


def _floor_of_127(w: Work, p):
    """Cut P to whole 127ths, towards 0."""
    return (p * 127).floor() / 127 @ w.v, p.sum(-1, keepdim=True)


def _e4m3(w: Work, p):
    """Keep P of at most 1 in e4m3, where it should be 256 times as large."""
    return p.float().to(torch.float8_e4m3fn).double() @ w.v, p.sum(-1, keepdim=True)


def _line_for_exp2(w: Work, p):
    """Take a line for exp2 between whole numbers, from the bits of the exponent."""
    x = (w.s - frame.finite(w.s.amax(-1, keepdim=True))) * math.log2(math.e)
    whole = x.clamp(min=-1000.0).floor()
    p = torch.where(x < -1000, 0.0, torch.exp2(whole) * (1 + x.clamp(min=-1000.0) - whole))
    return frame.kept(w, p) @ w.v, p.sum(-1, keepdim=True)


def _short_table(w: Work, p):
    """Take 0 for weights below e^-3, where a table ends."""
    p = torch.where(p < math.exp(-3), 0.0, p)
    return frame.kept(w, p) @ w.v, p.sum(-1, keepdim=True)


def _guess(w: Work):
    """Multiply by a reciprocal from the bits of l, without a step of Newton's method."""
    p = frame.weights(w)
    l = p.sum(-1, keepdim=True).clamp(min=1e-3).float()
    guess = (0x7EF311C3 - l.view(torch.int32)).view(torch.float32).double()
    return frame.over(w, frame.kept(w, p) @ w.v * guess, torch.ones_like(guess))


def _heads_scales(w: Work, x):
    """Take for each KV head the scale of the next one, a quarter larger or smaller."""
    heads = frame.of_kv_heads(w, x)
    size = 1 + 0.25 * torch.arange(heads.shape[1]).double()[:, None, None]
    return frame.for_queries(w, heads * (size.roll(1, 0) / size if len(size) > 1 else 1.25))


def _by_way_of_e4m3(w: Work, out):
    """Store in e4m3, with one scale for all."""
    top = frame.largest(out.float())
    return ((out.float() / top * 448).to(torch.float8_e4m3fn).float() * top / 448).to(out.dtype)


BUGS: dict[str, Callable] = {
    "K in 4 bits by groups of 32": frame.reading(k=_k_by_groups),
    "V clipped to what its first tile holds": frame.reading(v=_clipped_to_first_tile),
    "V with K's scale": frame.reading(v=_scale_of_k),
    "V's scales 16 channels late": frame.reading(v=_groups_off),
    "V's scales of keys in a swizzle": frame.reading(v=_scales_swizzled),
    "K's scale of the next KV head": frame.reading(k=_heads_scales),
    "zero points of K off twice": frame.reading(k=_zero_points_twice),
    "V's two numbers of a byte exchanged": frame.reading(v=_nibbles),
    "V without its mean": frame.reading(v=_mean_off),
    "upper halves of sums over channels": scored(_sums_of_steps),
    "P cut to whole 127ths": frame.summed(_floor_of_127),
    "P of at most 1 in e4m3": frame.summed(_e4m3),
    "a line for exp2": frame.summed(_line_for_exp2),
    "weights below e^-3 as 0": frame.summed(_short_table),
    "1 / l from its bits": _guess,
    "the output by way of e4m3": stored(_by_way_of_e4m3),
}
"""Name: the bug."""
