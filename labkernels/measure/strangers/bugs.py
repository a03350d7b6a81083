"""The bugs of the first set, each with a pattern that a right name for the bug matches."""

import math
from collections.abc import Callable

import torch

from labkernels.measure.strangers.wrong import (
    Work,
    attend,
    changed,
    keys_of,
    keys_read,
    masked,
    merged,
    places,
    running,
    scored,
    stored,
    valued,
)


def rope(x, *, interleaved: bool, base: float, first: int = 0):
    """Return x [B, H, S, D] rotated by its positions, from `first` on."""
    half = x.shape[-1] // 2
    place = torch.arange(x.shape[2], dtype=torch.float64)[:, None] + first
    angle = place * base ** (-torch.arange(half, dtype=torch.float64) / half)
    cos, sin = angle.cos(), angle.sin()
    if interleaved:
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def _roped(w: Work, **how):
    first = w.k.shape[2] - w.q.shape[2]
    return w.scores(rope(w.q, first=first, **how), rope(w.k, **how))


def _other_heads(w: Work, x, step: int):
    """Return for each head the tensor of the KV head that lies `step` before."""
    return x.roll(step * w.call.group, 1)


def _right_weights(m, l):
    return torch.exp(m - m.amax(0)) * l


def _base_mixed(m, l):
    lse = m + l.clamp(min=1e-300).log()
    return torch.exp2(lse - lse.amax(0))


def _alibi(w: Work):
    heads = w.s.shape[1]
    slopes = 2.0 ** (-8 * torch.arange(1, heads + 1, dtype=torch.float64) / heads)
    query, key = places(w)
    return w.s + slopes[:, None, None] * (key - query)


def _quantised(x, dtype=torch.float8_e4m3fn):
    return x.float().to(dtype).double()


def _layout(x):
    """Return x [B, H, S, D] as read by code that takes its layout for [B, S, H, D]."""
    b, h, s, d = x.shape
    return x.reshape(b, s, h, d).transpose(1, 2).contiguous().reshape(x.shape)


def _sunk(w: Work, logit: float):
    m = w.s.amax(-1, keepdim=True)
    p = torch.exp(w.s - m)
    l = p.sum(-1, keepdim=True)
    rounded = p.to(w.call.q.dtype).double()
    return (rounded @ w.v / (l + torch.exp(logit - m))).to(w.call.q.dtype)


def _truncated(w: Work):
    m = w.s.amax(-1, keepdim=True)
    p = torch.exp(w.s - m)
    bits = 0xFFFF if w.call.q.dtype == torch.bfloat16 else 0x1FFF
    cut = (p.float().view(torch.int32) & ~bits).view(torch.float32).double()
    return (cut @ w.v / p.sum(-1, keepdim=True)).to(w.call.q.dtype)


def _without(w: Work, first: int, last: int):
    keys = keys_of(w)
    return masked(w.s, (keys >= first) & (keys < last))


def _swap_page(w: Work, size: int = 16):
    index = keys_of(w)
    pages = len(index) // size
    to, of = (2 % pages) * size, (pages - 1) * size
    index[to : to + size] = torch.arange(of, of + size)
    return index


def _garbage(w: Work, out):
    out = out.clone()
    out.view(-1)[5::389] = 3.0
    return out


def _roll_last(out):
    return out.roll(1, -1)


Bug = Callable[[Work], torch.Tensor]
WRONG: dict[str, tuple[Bug, str]] = {
    "K of next head": (
        scored(lambda w: w.scores(k=_other_heads(w, w.k, 1))),
        "K of another head|KV heads",
    ),
    "V of next head": (valued(lambda w: _other_heads(w, w.v, 1)), "V of another head|KV heads"),
    "K and V of next head": (
        lambda w: attend(
            w.scores(k=_other_heads(w, w.k, 1)), _other_heads(w, w.v, 1), w.call.q.dtype
        ),
        "K and V of another head|KV heads",
    ),
    "GQA interleaved": (
        lambda w: attend(
            w.scores(k=w.call.k.double().repeat(1, w.call.group, 1, 1)),
            w.call.v.double().repeat(1, w.call.group, 1, 1),
            w.call.q.dtype,
        ),
        "GQA|K and V of another head",
    ),
    "heads swapped": (stored(lambda w, out: out.flip(1)), "another row|heads|of another head"),
    "heads rolled": (stored(lambda w, out: out.roll(1, 1)), "another row|heads|of another head"),
    "queries rolled": (stored(lambda w, out: out.roll(1, 2)), "another row|queries"),
    "requests swapped": (stored(lambda w, out: out.roll(1, 0)), "another row|request"),
    "K and V of next request": (
        lambda w: attend(w.scores(k=w.k.roll(1, 0)), w.v.roll(1, 0), w.call.q.dtype),
        "request",
    ),
    "channels rolled": (stored(lambda w, out: _roll_last(out)), "channels"),
    "channel halves swapped": (
        stored(lambda w, out: out.roll(out.shape[-1] // 2, -1)),
        "channels",
    ),
    "channels interleaved": (
        stored(lambda w, out: torch.stack(out.chunk(2, -1), -1).flatten(-2)),
        "channels",
    ),
    "one channel copied": (
        stored(lambda w, out: changed(out, (..., 7), out[..., 6])),
        "channels mixed up",
    ),
    "last channels zero": (
        stored(lambda w, out: changed(out, (..., slice(-8, None)), 0.0)),
        "channels",
    ),
    "V shifted by one key": (valued(lambda w: w.v.roll(1, 2)), "V of the key|offset"),
    "K shifted by one key": (scored(lambda w: w.scores(k=w.k.roll(1, 2))), "K of the key|offset"),
    "V shifted by 16 keys": (valued(lambda w: w.v.roll(-16, 2)), "offset|V of the key"),
    "first key skipped": (
        scored(lambda w: _without(w, 0, 1)),
        "key left out|keys left out|window",
    ),
    "last key skipped": (
        scored(lambda w: _without(w, w.s.shape[-1] - 1, w.s.shape[-1])),
        "key left out|keys at the end left out|keys left out|causal",
    ),
    "keys 16 to 31 skipped": (
        scored(lambda w: _without(w, 16, 32)),
        "page left out|keys left out|split left out",
    ),
    "last block skipped": (
        scored(lambda w: _without(w, w.s.shape[-1] // 16 * 16 - 16, w.s.shape[-1])),
        "keys at the end left out|page left out|keys left out|split left out",
    ),
    "key 5 twice": (
        keys_read(lambda w: torch.cat([keys_of(w)[:-1], torch.tensor([5])])),
        "key|page",
    ),
    "page read for another": (keys_read(_swap_page), "wrong page|keys read"),
    "causal one key more": (
        lambda w: attend(
            masked(w.q @ w.k.mT * w.call.scale, places(w)[1] > places(w)[0] + 1),
            w.v,
            w.call.q.dtype,
        ),
        "keys that the mask hides|causal",
    ),
    "causal one key fewer": (
        scored(lambda w: masked(w.s, (places(w)[1] > places(w)[0] - 1) & (places(w)[1] > 0))),
        "key left out|keys at the end left out|causal|strict",
    ),
    "causal left out": (
        lambda w: attend(w.q @ w.k.mT * w.call.scale, w.v, w.call.q.dtype),
        "causal mask left out",
    ),
    "causal top left": (
        lambda w: attend(
            masked(
                w.q @ w.k.mT * w.call.scale,
                places(w)[1] > torch.arange(w.s.shape[2])[:, None],
            ),
            w.v,
            w.call.q.dtype,
        ),
        "causal mask aligned to the first key|a causal mask that",
    ),
    "window of 32": (
        scored(lambda w: masked(w.s, places(w)[1] <= places(w)[0] - 32)),
        "window|left out",
    ),
    "soft cap of 5": (scored(lambda w: 5 * torch.tanh(w.s / 5)), "soft cap"),
    "soft cap of 30": (scored(lambda w: 30 * torch.tanh(w.s / 30)), "soft cap"),
    "sink of logit 1": (lambda w: _sunk(w, 1.0), "sink|padding in the denominator"),
    "off by one softmax": (lambda w: _sunk(w, 0.0), "sink|padding in the denominator"),
    "8 pads in the denominator": (
        lambda w: _sunk(w, math.log(8.0)),
        "sink|padding in the denominator",
    ),
    "ALiBi": (scored(_alibi), "ALiBi"),
    "RoPE again": (scored(lambda w: _roped(w, interleaved=False, base=1e4)), "RoPE"),
    "RoPE again, interleaved": (scored(lambda w: _roped(w, interleaved=True, base=1e4)), "RoPE"),
    "RoPE again, base 500000": (scored(lambda w: _roped(w, interleaved=False, base=5e5)), "RoPE"),
    "scale left out": (scored(lambda w: w.s / w.call.scale), "wrong scale"),
    "scale twice": (scored(lambda w: w.s * w.call.scale), "wrong scale"),
    "log2 e left out": (scored(lambda w: w.s * math.log(2)), "wrong scale"),
    "log2 e twice": (scored(lambda w: w.s * math.log2(math.e)), "wrong scale"),
    "scale of half the dim": (scored(lambda w: w.s * 2**0.5), "wrong scale|^scale"),
    "scale of 192 for 128": (scored(lambda w: w.s * (2 / 3) ** 0.5), "wrong scale|^scale"),
    "scale 10 % large": (scored(lambda w: w.s * 1.1), "scale"),
    "scale in bf16": (scored(lambda w: w.s * 1.003), "scale"),
    "V halved": (stored(lambda w, out: out / 2), "factor|common mode|times"),
    "V scale of fp8 forgotten": (stored(lambda w, out: out * 0.0371), "factor|common mode|times"),
    "denominator left out": (
        lambda w: (torch.exp(w.s - w.s.amax(-1, keepdim=True)) @ w.v).to(w.call.q.dtype),
        "denominator|normalis",
    ),
    "1 % too large": (stored(lambda w, out: out * 1.01), "factor|common mode|times|denominator"),
    "P in e4m3": (
        lambda w: (
            _quantised(torch.exp(w.s - w.s.amax(-1, keepdim=True)))
            @ w.v
            / torch.exp(w.s - w.s.amax(-1, keepdim=True)).sum(-1, keepdim=True)
        ).to(w.call.q.dtype),
        "P .*e4m3|P in",
    ),
    "V in e4m3": (valued(lambda w: _quantised(w.v)), "V .*e4m3|V in"),
    "K in e4m3": (scored(lambda w: w.scores(k=_quantised(w.k))), "K .*e4m3|K in"),
    "K and V in e4m3": (
        lambda w: attend(w.scores(k=_quantised(w.k)), _quantised(w.v), w.call.q.dtype),
        "K and V .*e4m3|K and V in",
    ),
    "P truncated": (_truncated, "P truncated"),
    "scores in 16 bits": (scored(lambda w: w.s.to(w.call.q.dtype).double()), "scores"),
    "scores in 16 bits, twice": (
        scored(
            lambda w: (
                ((w.q @ w.k.mT).to(w.call.q.dtype).double() * w.call.scale)
                .to(w.call.q.dtype)
                .double()
                .masked_fill(w.hidden, -math.inf)
            )
        ),
        "scores",
    ),
    "q scaled in 16 bits": (
        scored(
            lambda w: (
                (w.q * 0.11).to(w.call.q.dtype).double() @ w.k.mT * (w.call.scale / 0.11)
            ).masked_fill(w.hidden, -math.inf)
        ),
        "q|scores",
    ),
    "o accumulated in bf16": (running(32, "bfloat16"), "accumulated"),
    "o accumulated in fp16": (running(32, "float16"), "accumulated"),
    "partials in 16 bits": (merged(32, _right_weights, "input"), "partial outputs"),
    "partials unweighted": (merged(32, lambda m, l: torch.ones_like(m)), "unweighted|weighted"),
    "partials weighted by l alone": (merged(32, lambda m, l: l), "weighted|merge"),
    "partials weighted by exp(m) alone": (
        merged(32, lambda m, l: torch.exp(m - m.amax(0))),
        "weighted|merge",
    ),
    "merge in base 2 of natural lse": (merged(32, _base_mixed), "mixed log base"),
    "split left out": (
        merged(
            64,
            lambda m, l: (
                _right_weights(m, l) * (torch.arange(len(m)) != 1)[:, None, None, None, None]
            ),
        ),
        "split left out|keys left out|page left out",
    ),
    "o not rescaled": (running(32, "o kept"), "o not rescaled"),
    "l not rescaled": (running(32, "l kept"), "l not rescaled"),
    "o rescaled late": (running(32, "stale"), "stale|o not rescaled"),
    "rows never written": (
        stored(lambda w, out: changed(out, (slice(None), 1), 0.0)),
        "never written",
    ),
    "NaN in a row": (stored(lambda w, out: changed(out, (0, 1, 0), math.nan)), "NaN"),
    "garbage elements": (stored(_garbage), "sparse outliers"),
    "hidden keys of score 0": (
        lambda w: attend(w.s.masked_fill(w.hidden, 0.0), w.v, w.call.q.dtype),
        "hidden|mask",
    ),
    "V in another layout": (
        valued(lambda w: _layout(w.call.v.double()).repeat_interleave(w.call.group, 1)),
        "layout",
    ),
    "K in another layout": (
        scored(lambda w: w.scores(k=_layout(w.call.k.double()).repeat_interleave(w.call.group, 1))),
        "layout",
    ),
    "out in another layout": (stored(lambda w, out: _layout(out)), "layout|another row"),
    "K zero from key 48 on": (
        scored(lambda w: w.scores(k=w.k * (keys_of(w) < 48)[:, None])),
        "read as 0",
    ),
    "V zero from key 48 on": (valued(lambda w: w.v * (keys_of(w) < 48)[:, None]), "read as 0"),
}
"""By name: the bug, and a pattern that a right name for the bug matches."""
