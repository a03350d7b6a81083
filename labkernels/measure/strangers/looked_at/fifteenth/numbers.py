"""Bugs of numbers: scales, zero points, formats of few bits, exps and accumulators."""

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.fifteenth.frame import (
    PAGE,
    finite,
    heads,
    keys,
    reading,
    scoring,
    summed,
)
from labkernels.measure.strangers.wrong import Work, masked


def _by_heads(w: Work):
    """Scales of KV heads [Hkv, 1, 1], as a calibration finds them."""
    n = w.q.shape[1] // w.call.group
    return torch.linspace(0.8, 1.3, n, dtype=torch.float64)[:, None, None]


def _cached(w: Work):
    """The keys that an 8-bit cache held before this call [L]."""
    return keys(w) < w.k.shape[2] * 3 // 4


def _value_scale_of_the_cache_forgotten(w: Work, x):
    return torch.where(_cached(w)[:, None], x * 0.7, x)


def _key_scale_on_new_tokens(w: Work, x):
    return torch.where(_cached(w)[:, None], x, x * 1.6)


def _scale_of_the_wrong_head(w: Work):
    h, scale = heads(w).flatten(), _by_heads(w)
    by = scale[h % len(scale)] / scale[h // w.call.group]
    return masked(w.q @ w.k.mT * w.call.scale * by, w.hidden)


def _channel_scales_one_off(w: Work, x):
    scale = x.abs().amax((0, 2), keepdim=True)
    return x * scale.roll(1, -1) / scale


def _halves_of_pairs(w: Work, x):
    d = x.shape[-1] // 2 * 2
    return torch.cat([x[..., :d].unflatten(-1, (-1, 2)).flip(-1).flatten(-2), x[..., d:]], -1)


def _seven_bits(w: Work, p):
    return torch.floor(p * 127) / 127 @ w.v, p.sum(-1, keepdim=True)


def _linear_mantissa(w: Work, p):
    """Exp2 by adding to the bits of a float, whose mantissa is then linear."""
    x = torch.log2(p).clamp(min=-100.0)
    whole = x.floor()
    p = torch.where(p > 0, torch.exp2(whole) * (1 + x - whole), p)
    return p @ w.v, p.sum(-1, keepdim=True)


def _scale_twice_in_the_tail(w: Work):
    by = torch.where(_cached(w), 1.0, w.call.scale).double()
    return masked(w.q @ w.k.mT * w.call.scale * by, w.hidden)


def _sum_in_bf16(w: Work):
    """L grows key by key in bfloat16, where small weights no longer count."""
    m = finite(w.s.amax(-1, keepdim=True))
    p = torch.exp(w.s - m)
    l = torch.zeros_like(m, dtype=torch.bfloat16)
    for j in range(p.shape[-1]):
        l = l + p[..., j : j + 1].to(torch.bfloat16)
    return (p @ w.v / l.double().clamp(min=1e-30)).to(w.call.q.dtype)


def _zero_point_kept(w: Work, x):
    return x - x.amin((2, 3), keepdim=True)


def _zero_points_of_the_page_before(w: Work, x):
    pages = x.split(PAGE, 2)
    zero = [page.amin(2, keepdim=True) for page in pages]
    moved = [zero[i - 1] - zero[i] if i else 0 * zero[0] for i in range(len(pages))]
    return torch.cat([page + by for page, by in zip(pages, moved, strict=True)], 2)


def _block_scales_one_on(w: Work, x):
    block = torch.arange(x.shape[-1]) // PAGE
    size = torch.stack([part.abs().amax(-1) for part in x.split(PAGE, -1)], -1).clamp(min=1e-9)
    return x * (size.roll(-1, -1) / size)[..., block]


def _clipped(w: Work, x):
    top = 1.1 * x.std()
    return x.clamp(-top, top)


def _token_scales_one_late(w: Work, x):
    size = x.norm(dim=-1, keepdim=True).clamp(min=1e-9)
    return x * size[:, :, (keys(w) - 1).clamp(min=0)] / size


def _query_in_four_bits(w: Work):
    step = w.q.abs().amax(-1, keepdim=True) / 7
    return w.scores(q=torch.round(w.q / step.clamp(min=1e-9)) * step)


BUGS: dict[str, Bug] = {
    "scale of V forgotten for cached tokens": reading(_value_scale_of_the_cache_forgotten, "v"),
    "scale of K on new tokens too": reading(_key_scale_on_new_tokens, "k"),
    "scales of K by modulo of the heads": scoring(_scale_of_the_wrong_head),
    "scales of V's channels one off": reading(_channel_scales_one_off, "v"),
    "halves of V's pairs exchanged": reading(_halves_of_pairs, "v"),
    "P cut off to 7 bits": summed(_seven_bits),
    "exp2 with a linear mantissa": summed(_linear_mantissa),
    "scale twice in the last quarter": scoring(_scale_twice_in_the_tail),
    "l added key by key in bf16": _sum_in_bf16,
    "zero point of V not taken off": reading(_zero_point_kept, "v"),
    "zero points of K of the page before": reading(_zero_points_of_the_page_before, "k"),
    "block scales of K one block on": reading(_block_scales_one_on, "k"),
    "V clipped by a scale too small": reading(_clipped, "v"),
    "scales of K's tokens one token late": reading(_token_scales_one_late, "k"),
    "Q in four bits": scoring(_query_in_four_bits),
}
"""Name: the bug."""
