"""Bugs of the fourth set, each with a pattern that a right name for it matches.

Many are after reports in public of FlashInfer, FlashAttention, SGLang, vLLM and Triton: a head
width that is wired into a kernel, a split's log-sum-exp that is scaled twice, pages of another
size, a rotation over the wrong width. `bugs_of_keys` and `bugs_of_rows` have the rest.
"""

import math
from typing import Any

import torch

from labkernels.measure.strangers.bugs import Bug, rope
from labkernels.measure.strangers.looked_at.fourth.bugs_of_keys import KEYS
from labkernels.measure.strangers.looked_at.fourth.bugs_of_rows import ROWS
from labkernels.measure.strangers.wrong import Work, attend, merged, parts, places, scored, valued

_MERGE = "merge|weighted|lse|split"
_ROPE = "RoPE|rotation"


def _turned(x, angles):
    """x [B, H, S, D], its halves turned by angles [S, D / 2]."""
    a, b = x.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def _places_of(w: Work):
    """Places of queries and of keys: [M, 1], [L, 1]."""
    query, key = places(w)
    return query.double(), key.double().T


def _by_places(w: Work, change):
    """Scores with every place x in the rotation replaced by change(x)."""
    half = w.q.shape[-1] // 2
    powers = 1e4 ** (-torch.arange(half, dtype=torch.float64) / half)
    query, key = _places_of(w)
    turned = (_turned(x, (change(p) - p) * powers) for x, p in ((w.q, query), (w.k, key)))
    return w.scores(*turned)


def _back(x, first: int, *, interleaved: bool):
    """The rotation undone."""
    place = torch.arange(x.shape[2], dtype=torch.float64)[:, None] + first
    half = x.shape[-1] // 2
    angle = -place * 1e4 ** (-torch.arange(half, dtype=torch.float64) / half)
    if not interleaved:
        return _turned(x, angle)
    a, b = x[..., 0::2], x[..., 1::2]
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def _other_convention(w: Work):
    first = w.k.shape[2] - w.q.shape[2]
    return w.scores(
        *(
            rope(_back(x, at, interleaved=True), interleaved=False, base=1e4, first=at)
            for x, at in ((w.q, first), (w.k, 0))
        )
    )


def _partial_of_the_whole_width(w: Work):
    """A quarter of the channels turns, but with the pairs and frequencies of all of them."""
    first, dim = w.k.shape[2] - w.q.shape[2], w.q.shape[-1]
    n = dim // 4
    found = []
    for x, at in ((w.q, first), (w.k, 0)):
        part = torch.cat([_back(x[..., :n], at, interleaved=False), x[..., n:]], -1)
        place = torch.arange(x.shape[2], dtype=torch.float64)[:, None] + at
        angle = place * 1e4 ** (-torch.arange(dim // 2, dtype=torch.float64) / (dim // 2))
        found.append(_turned(part, angle * (torch.arange(dim // 2) < n // 2)))
    return w.scores(*found)


def _scaled_twice(w: Work):
    return lambda m, l: torch.exp(m * w.call.scale + l.clamp(min=1e-300).log())


def _transposed_lse(m, l):
    """Return merge weights from a log-sum-exp that is stored [H, M] and read [M, H]."""
    lse = m + l.clamp(min=1e-300).log()
    other = lse.flatten(2, 3).unflatten(2, (lse.shape[3], lse.shape[2])).transpose(2, 3)
    return torch.exp(other - other.amax(0))


def _first_in_base_2(m, l):
    lse = m + l.clamp(min=1e-300).log()
    lse[0] = lse[0] * math.log2(math.e)
    return torch.exp(lse - lse.amax(0))


def _second_for_first(w: Work, keys: int = 48):
    m, l, o = parts(w, keys)
    part = torch.where(l > 0, o / l.clamp(min=1e-300), torch.zeros_like(o))
    if len(part) > 1:
        part[0] = part[1]
    weights = torch.exp(m - m.amax(0)) * l
    return ((weights * part).sum(0) / weights.sum(0)).to(w.call.q.dtype)


def _divided_twice(w: Work, keys: int = 64):
    m, l, o = parts(w, keys)
    part = torch.where(l > 0, o / l.clamp(min=1e-300), torch.zeros_like(o))
    back = torch.exp(m - m.amax(0))
    return ((back * part).sum(0) / (back * l).sum(0)).to(w.call.q.dtype)


def _by_row(w: Work):
    query, _ = places(w)
    return w.s * (1 + 0.3 * torch.log1p(query.double() / 8))


def _buckets(w: Work):
    query, key = places(w)
    distance = (query - key).clamp(min=0)
    bucket = torch.where(distance < 8, distance, 8 + (distance / 8.0).log2().floor().long())
    heads = torch.arange(w.s.shape[1])[:, None, None]
    return w.s + 0.4 * torch.sin(bucket * 1.7 + heads)


def _without_mean(w: Work):
    return w.scores(q=w.q - w.q.mean((1, 2), keepdim=True))


def _weights(w: Work):
    return torch.exp(w.s - w.s.amax(-1, keepdim=True))


def _twice_softmax(w: Work):
    p = torch.softmax(w.s, -1)
    return attend(p.masked_fill(w.s == -math.inf, -math.inf), w.v, w.call.q.dtype)


def _over_queries(w: Work):
    p = torch.exp(w.s - w.s.amax((2, 3), keepdim=True))
    return ((p / p.sum(2, keepdim=True).clamp(min=1e-300)) @ w.v).to(w.call.q.dtype)


def _rounded_exponents(w: Work):
    x = (w.s - w.s.amax(-1, keepdim=True)) * math.log2(math.e)
    p = torch.exp2(torch.round(x * 8) / 8)
    return (p @ w.v / p.sum(-1, keepdim=True)).to(w.call.q.dtype)


def _over_first_tile(w: Work, tile: int = 32):
    top = w.s[..., :tile].amax(-1, keepdim=True)
    return torch.minimum(w.s, top)


def _sum_in_bf16(w: Work, block: int = 16):
    p, l = _weights(w), torch.zeros(*w.s.shape[:3], 1).double()
    for first in range(0, p.shape[-1], block):
        l = (l + p[..., first : first + block].sum(-1, keepdim=True)).bfloat16().double()
    return (p @ w.v / l).to(w.call.q.dtype)


def _by_channels(w: Work, step: int = 16):
    total: Any = 0.0
    for c in range(0, w.q.shape[-1], step):
        total = (total + w.q[..., c : c + step] @ w.k[..., c : c + step].mT).half().double()
    return (total * w.call.scale).masked_fill(w.hidden, -math.inf)


def _e5m2(w: Work):
    p = _weights(w)
    used = p.float().to(torch.float8_e5m2).double()
    return (used @ w.v / p.sum(-1, keepdim=True)).to(w.call.q.dtype)


def _other_bits(x, dtype):
    """Bits of one 16-bit format taken for the other; of float32, those of tf32 cut to 5 bits."""
    if dtype == torch.float32:
        return (x.float().view(torch.int32) & ~0x3FFFF).view(torch.float32).double()
    other = torch.bfloat16 if dtype == torch.float16 else torch.float16
    return x.to(dtype).view(other).double().clamp(-1e4, 1e4)


_OTHER: dict[str, tuple[Bug, str]] = {
    "halves turned where pairs were meant": (scored(_other_convention), _ROPE),
    "partial rotation of the whole width": (scored(_partial_of_the_whole_width), _ROPE),
    "places start again at key 64": (
        scored(lambda w: _by_places(w, lambda p: torch.where(p >= 64, p - 64, p))),
        _ROPE,
    ),
    "table of rotations ends at 40": (
        scored(lambda w: _by_places(w, lambda p: p.clamp(max=40))),
        _ROPE,
    ),
    "places counted in rows of 14": (
        scored(lambda w: _by_places(w, lambda p: torch.div(p, 14, rounding_mode="floor"))),
        _ROPE,
    ),
    "lse scaled twice at the merge": (lambda w: merged(64, _scaled_twice(w))(w), _MERGE),
    "lse of splits transposed": (merged(32, _transposed_lse), _MERGE),
    "lse of the prefix in base 2": (merged(64, _first_in_base_2), _MERGE + "|base"),
    "second split in the slot of the first": (_second_for_first, _MERGE + "|twice|keys read"),
    "splits divided by l twice": (_divided_twice, _MERGE + "|denominator|factor|common mode"),
    "scale that grows with the place": (scored(_by_row), "scale"),
    "bias of buckets of distances": (scored(_buckets), "bias|ALiBi|position"),
    "mean of q not added back": (scored(_without_mean), "mean|[qQ] |quer"),
    "softmax of a softmax": (_twice_softmax, "softmax|exponential|twice"),
    "softmax over the queries": (_over_queries, "axis|softmax|denominator"),
    "exponents in eighths": (_rounded_exponents, "exp|scores rounded"),
    "maximum of the first tile alone": (scored(_over_first_tile), "clamp|maxim|cap"),
    "cap before the scale": (
        scored(lambda w: w.call.scale * 20 * torch.tanh(w.s / w.call.scale / 20)),
        "cap",
    ),
    "l added up in bf16": (_sum_in_bf16, "^l |denominator"),
    "scores added up in fp16": (scored(_by_channels), "scores"),
    "P in e5m2": (_e5m2, "P .*e5m2|P in"),
    "K of other bits": (
        scored(lambda w: w.scores(k=_other_bits(w.k, w.call.q.dtype))),
        "K (read|in|of|and)",
    ),
    "V of other bits": (valued(lambda w: _other_bits(w.v, w.call.q.dtype)), "V (read|in|of)"),
}
WRONG: dict[str, tuple[Bug, str]] = ROWS | KEYS | _OTHER
"""Name: the bug, and a pattern that a right name for it matches."""
