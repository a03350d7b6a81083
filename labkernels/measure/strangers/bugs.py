"""Bugs of other people's kinds, each with the classes of mistakes that it belongs to."""

import math
from collections.abc import Callable

import torch

from labkernels.defects import (
    INDEX_K,
    INDEX_OUT,
    INDEX_V,
    LESS_EXACT,
    MASK,
    MEMORY,
    MERGE,
    SCORES,
    STORE,
    VALUES,
    WEIGHTS,
)
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
_BUGS: dict[str, Bug] = {
    "K of next head": scored(lambda w: w.scores(k=_other_heads(w, w.k, 1))),
    "V of next head": valued(lambda w: _other_heads(w, w.v, 1)),
    "K and V of next head": lambda w: attend(
        w.scores(k=_other_heads(w, w.k, 1)), _other_heads(w, w.v, 1), w.call.q.dtype
    ),
    "GQA interleaved": lambda w: attend(
        w.scores(k=w.call.k.double().repeat(1, w.call.group, 1, 1)),
        w.call.v.double().repeat(1, w.call.group, 1, 1),
        w.call.q.dtype,
    ),
    "heads swapped": stored(lambda w, out: out.flip(1)),
    "heads rolled": stored(lambda w, out: out.roll(1, 1)),
    "queries rolled": stored(lambda w, out: out.roll(1, 2)),
    "requests swapped": stored(lambda w, out: out.roll(1, 0)),
    "K and V of next request": lambda w: attend(
        w.scores(k=w.k.roll(1, 0)), w.v.roll(1, 0), w.call.q.dtype
    ),
    "channels rolled": stored(lambda w, out: _roll_last(out)),
    "channel halves swapped": stored(lambda w, out: out.roll(out.shape[-1] // 2, -1)),
    "channels interleaved": stored(lambda w, out: torch.stack(out.chunk(2, -1), -1).flatten(-2)),
    "one channel copied": stored(lambda w, out: changed(out, (..., 7), out[..., 6])),
    "last channels zero": stored(lambda w, out: changed(out, (..., slice(-8, None)), 0.0)),
    "V shifted by one key": valued(lambda w: w.v.roll(1, 2)),
    "K shifted by one key": scored(lambda w: w.scores(k=w.k.roll(1, 2))),
    "V shifted by 16 keys": valued(lambda w: w.v.roll(-16, 2)),
    "first key skipped": scored(lambda w: _without(w, 0, 1)),
    "last key skipped": scored(lambda w: _without(w, w.s.shape[-1] - 1, w.s.shape[-1])),
    "keys 16 to 31 skipped": scored(lambda w: _without(w, 16, 32)),
    "last block skipped": scored(
        lambda w: _without(w, w.s.shape[-1] // 16 * 16 - 16, w.s.shape[-1])
    ),
    "key 5 twice": keys_read(lambda w: torch.cat([keys_of(w)[:-1], torch.tensor([5])])),
    "page read for another": keys_read(_swap_page),
    "causal one key more": lambda w: attend(
        masked(w.q @ w.k.mT * w.call.scale, places(w)[1] > places(w)[0] + 1),
        w.v,
        w.call.q.dtype,
    ),
    "causal one key fewer": scored(
        lambda w: masked(w.s, (places(w)[1] > places(w)[0] - 1) & (places(w)[1] > 0))
    ),
    "causal left out": lambda w: attend(w.q @ w.k.mT * w.call.scale, w.v, w.call.q.dtype),
    "causal top left": lambda w: attend(
        masked(
            w.q @ w.k.mT * w.call.scale,
            places(w)[1] > torch.arange(w.s.shape[2])[:, None],
        ),
        w.v,
        w.call.q.dtype,
    ),
    "window of 32": scored(lambda w: masked(w.s, places(w)[1] <= places(w)[0] - 32)),
    "soft cap of 5": scored(lambda w: 5 * torch.tanh(w.s / 5)),
    "soft cap of 30": scored(lambda w: 30 * torch.tanh(w.s / 30)),
    "sink of logit 1": lambda w: _sunk(w, 1.0),
    "off by one softmax": lambda w: _sunk(w, 0.0),
    "8 pads in the denominator": lambda w: _sunk(w, math.log(8.0)),
    "ALiBi": scored(_alibi),
    "RoPE again": scored(lambda w: _roped(w, interleaved=False, base=1e4)),
    "RoPE again, interleaved": scored(lambda w: _roped(w, interleaved=True, base=1e4)),
    "RoPE again, base 500000": scored(lambda w: _roped(w, interleaved=False, base=5e5)),
    "scale left out": scored(lambda w: w.s / w.call.scale),
    "scale twice": scored(lambda w: w.s * w.call.scale),
    "log2 e left out": scored(lambda w: w.s * math.log(2)),
    "log2 e twice": scored(lambda w: w.s * math.log2(math.e)),
    "scale of half the dim": scored(lambda w: w.s * 2**0.5),
    "scale of 192 for 128": scored(lambda w: w.s * (2 / 3) ** 0.5),
    "scale 10 % large": scored(lambda w: w.s * 1.1),
    "scale in bf16": scored(lambda w: w.s * 1.003),
    "V halved": stored(lambda w, out: out / 2),
    "V scale of fp8 forgotten": stored(lambda w, out: out * 0.0371),
    "denominator left out": lambda w: (torch.exp(w.s - w.s.amax(-1, keepdim=True)) @ w.v).to(
        w.call.q.dtype
    ),
    "1 % too large": stored(lambda w, out: out * 1.01),
    "P in e4m3": lambda w: (
        _quantised(torch.exp(w.s - w.s.amax(-1, keepdim=True)))
        @ w.v
        / torch.exp(w.s - w.s.amax(-1, keepdim=True)).sum(-1, keepdim=True)
    ).to(w.call.q.dtype),
    "V in e4m3": valued(lambda w: _quantised(w.v)),
    "K in e4m3": scored(lambda w: w.scores(k=_quantised(w.k))),
    "K and V in e4m3": lambda w: attend(
        w.scores(k=_quantised(w.k)), _quantised(w.v), w.call.q.dtype
    ),
    "P truncated": _truncated,
    "scores in 16 bits": scored(lambda w: w.s.to(w.call.q.dtype).double()),
    "scores in 16 bits, twice": scored(
        lambda w: (
            ((w.q @ w.k.mT).to(w.call.q.dtype).double() * w.call.scale)
            .to(w.call.q.dtype)
            .double()
            .masked_fill(w.hidden, -math.inf)
        )
    ),
    "q scaled in 16 bits": scored(
        lambda w: (
            (w.q * 0.11).to(w.call.q.dtype).double() @ w.k.mT * (w.call.scale / 0.11)
        ).masked_fill(w.hidden, -math.inf)
    ),
    "o accumulated in bf16": running(32, "bfloat16"),
    "o accumulated in fp16": running(32, "float16"),
    "partials in 16 bits": merged(32, _right_weights, "input"),
    "partials unweighted": merged(32, lambda m, l: torch.ones_like(m)),
    "partials weighted by l alone": merged(32, lambda m, l: l),
    "partials weighted by exp(m) alone": merged(32, lambda m, l: torch.exp(m - m.amax(0))),
    "merge in base 2 of natural lse": merged(32, _base_mixed),
    "split left out": merged(
        64,
        lambda m, l: _right_weights(m, l) * (torch.arange(len(m)) != 1)[:, None, None, None, None],
    ),
    "o not rescaled": running(32, "o kept"),
    "l not rescaled": running(32, "l kept"),
    "o rescaled late": running(32, "stale"),
    "rows never written": stored(lambda w, out: changed(out, (slice(None), 1), 0.0)),
    "NaN in a row": stored(lambda w, out: changed(out, (0, 1, 0), math.nan)),
    "garbage elements": stored(_garbage),
    "hidden keys of score 0": lambda w: attend(w.s.masked_fill(w.hidden, 0.0), w.v, w.call.q.dtype),
    "V in another layout": valued(
        lambda w: _layout(w.call.v.double()).repeat_interleave(w.call.group, 1)
    ),
    "K in another layout": scored(
        lambda w: w.scores(k=_layout(w.call.k.double()).repeat_interleave(w.call.group, 1))
    ),
    "out in another layout": stored(lambda w, out: _layout(out)),
    "K zero from key 48 on": scored(lambda w: w.scores(k=w.k * (keys_of(w) < 48)[:, None])),
    "V zero from key 48 on": valued(lambda w: w.v * (keys_of(w) < 48)[:, None]),
}
# The classes of each bug: one of them is a right answer, since the output shows no more.
_OF_CLASSES: dict[tuple[str, ...], tuple[str, ...]] = {
    (INDEX_K,): ("K of next head", "K shifted by one key", "K in another layout"),
    (INDEX_V,): (
        "V of next head",
        "V shifted by one key",
        "V shifted by 16 keys",
        "V in another layout",
    ),
    (INDEX_K, INDEX_V): (
        "K and V of next head",
        "GQA interleaved",
        "K and V of next request",
        "page read for another",
    ),
    (INDEX_K, INDEX_V, MASK): ("key 5 twice",),
    (INDEX_OUT,): (
        "heads swapped",
        "heads rolled",
        "queries rolled",
        "requests swapped",
        "channels rolled",
        "channel halves swapped",
        "channels interleaved",
        "one channel copied",
        "out in another layout",
    ),
    (MASK,): (
        "first key skipped",
        "last key skipped",
        "keys 16 to 31 skipped",
        "last block skipped",
        "causal one key more",
        "causal one key fewer",
        "causal left out",
        "causal top left",
        "window of 32",
    ),
    (MASK, MERGE): ("split left out",),
    (MASK, SCORES): ("hidden keys of score 0",),
    (SCORES,): (
        "soft cap of 5",
        "soft cap of 30",
        "ALiBi",
        "RoPE again",
        "RoPE again, interleaved",
        "RoPE again, base 500000",
        "scale left out",
        "scale twice",
        "log2 e left out",
        "log2 e twice",
        "scale of half the dim",
        "scale of 192 for 128",
        "scale 10 % large",
        "scale in bf16",
    ),
    (SCORES, LESS_EXACT): ("scores in 16 bits", "scores in 16 bits, twice", "q scaled in 16 bits"),
    (SCORES, INDEX_K, LESS_EXACT): ("K in e4m3",),
    (VALUES, INDEX_V, LESS_EXACT): ("V in e4m3",),
    (SCORES, VALUES, LESS_EXACT): ("K and V in e4m3",),
    (SCORES, MEMORY, INDEX_K): ("K zero from key 48 on",),
    (VALUES, MEMORY, INDEX_V): ("V zero from key 48 on",),
    (WEIGHTS,): (
        "sink of logit 1",
        "off by one softmax",
        "8 pads in the denominator",
        "denominator left out",
        "o not rescaled",
        "l not rescaled",
        "o rescaled late",
    ),
    (WEIGHTS, LESS_EXACT): ("P in e4m3", "P truncated"),
    (VALUES, LESS_EXACT): ("o accumulated in bf16", "o accumulated in fp16"),
    (MERGE, LESS_EXACT): ("partials in 16 bits",),
    (MERGE,): (
        "partials unweighted",
        "partials weighted by l alone",
        "partials weighted by exp(m) alone",
        "merge in base 2 of natural lse",
    ),
    (VALUES, STORE): ("V halved", "V scale of fp8 forgotten"),
    (VALUES, WEIGHTS, STORE): ("1 % too large",),
    (STORE,): ("last channels zero", "NaN in a row"),
    (STORE, MEMORY): ("rows never written", "garbage elements"),
}
CLASSES = {name: kinds for kinds, names in _OF_CLASSES.items() for name in names}
WRONG: dict[str, tuple[Bug, tuple[str, ...]]] = {
    name: (bug, CLASSES[name]) for name, bug in _BUGS.items()
}
"""By name: the bug, and the classes of labkernels.defects of which one is a right answer."""
