"""Bugs of the third set, each with a pattern that a right name for the bug matches.

Many follow public reports: a head offset that floors to 0, a rescale that compiles to 1, a window
that is cut to pages, a tile that straddles two pages, weights that are not exponentials.
"""

import math

import torch

from labkernels.measure.strangers.bugs import Bug, rope
from labkernels.measure.strangers.looked_at.third.bugs_of_rows import ROWS
from labkernels.measure.strangers.wrong import (
    Work,
    attend,
    keys_of,
    keys_read,
    masked,
    merged,
    places,
    read,
    running,
    scored,
    stored,
    valued,
)

_LOST = "left out|read as 0|window"


def _of_kv_heads(w: Work, of):
    """K and V of KV head of(h, Hkv) for KV head h."""
    n = w.call.k.shape[1]
    index = torch.tensor([of(h, n) for h in range(n)]).repeat_interleave(w.call.group)
    k, v = (x.double()[:, index] for x in (w.call.k, w.call.v))
    return attend(w.scores(k=k), v, w.call.q.dtype)


def _window(w: Work, size: int, kept: int = 0, page: int = 1):
    query, key = places(w)
    first = (query - size + 1).clamp(min=0) // page * page
    return masked(w.s, (key < first) & (key >= kept))


def _linear_exp2(w: Work):
    """Bits of a float32 set by a sum: 1 + f in place of 2^f."""
    m = w.s.amax(-1, keepdim=True)
    x = ((w.s - m) * math.log2(math.e)).masked_fill(w.s == -math.inf, -200.0)
    p = torch.exp2(x.floor()) * (1 + x - x.floor()) * (x > -150)
    return (p @ w.v / p.sum(-1, keepdim=True)).to(w.call.q.dtype)


def _rounded_p(w: Work, change):
    m = w.s.amax(-1, keepdim=True)
    p = torch.exp(w.s - m)
    return (change(p) @ w.v / p.sum(-1, keepdim=True)).to(w.call.q.dtype)


def _scaled_to(x, dtype, most: float, dims):
    step = x.abs().amax(dims, keepdim=True).clamp(min=1e-30) / most
    return (x / step).float().to(dtype).double() * step


def _whole_steps(x, most: float, dims):
    step = x.abs().amax(dims, keepdim=True).clamp(min=1e-30) / most
    return torch.round(x / step) * step


def _retuned(w: Work, old: float, new: float):
    """Rotated back by one base, and on by another."""
    first = w.k.shape[2] - w.q.shape[2]
    turned = []
    for x, at in ((w.q, first), (w.k, 0)):
        half = x.shape[-1] // 2
        place = torch.arange(x.shape[2], dtype=torch.float64)[:, None] + at
        power = -torch.arange(half, dtype=torch.float64) / half
        angle = place * (new**power - old**power)
        a, b = x[..., :half], x[..., half:]
        turned.append(
            torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)
        )
    return w.scores(*turned)


def _retuned_places(w: Work, by: float):
    first = w.k.shape[2] - w.q.shape[2]
    turned = []
    for x, at in ((w.q, first), (w.k, 0)):
        half = x.shape[-1] // 2
        place = torch.arange(x.shape[2], dtype=torch.float64)[:, None] + at
        angle = place * (1 / by - 1) * 1e4 ** (-torch.arange(half, dtype=torch.float64) / half)
        a, b = x[..., :half], x[..., half:]
        turned.append(
            torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)
        )
    return w.scores(*turned)


def _sloped(w: Work, slopes):
    query, key = places(w)
    return w.s + slopes(torch.arange(w.s.shape[1]))[:, None, None] * (key - query)


def _tile_of_k_transposed(w: Work, tile: int = 16):
    k = w.k.clone()
    n = k.shape[2] // tile * tile
    whole = k[:, :, :n].unflatten(2, (-1, tile)).unflatten(-1, (-1, tile))
    k[:, :, :n] = whole.transpose(3, 5).flatten(4, 5).flatten(2, 3)
    return k


def _rounded_lse(m, l):
    lse = (m + l.clamp(min=1e-300).log()).bfloat16().double()
    return torch.exp(lse - lse.amax(0))


def _seen_by_tile(w: Work, tile: int, *, whole: bool):
    query, key = places(w)
    last = query // tile * tile + (tile - 1 if whole else -1)
    if not w.call.causal:
        return w.s if whole else masked(w.s, key > last.clamp(min=0))
    return masked(w.q @ w.k.mT * w.call.scale, key > last.clamp(min=0))


def _other_request_from(w: Work, first: int):
    index = keys_of(w)
    late = (index >= first)[:, None]
    k, v = (torch.where(late, x.roll(1, 0), x) for x in (w.k, w.v))
    return attend(w.scores(k=k), v, w.call.q.dtype)


def _second_halves(w: Work, tile: int = 32):
    index = keys_of(w)
    late = index % tile >= tile // 2
    return torch.where(late, index - tile // 2, index)


def _shared_prefix_once_more(w: Work, n: int = 32):
    index = keys_of(w)
    weights = torch.where(index < n, 2.0, 1.0).double()
    return attend(w.s, w.v, w.call.q.dtype, weights=weights)


WRONG: dict[str, tuple[Bug, str]] = ROWS | {
    "KV heads of a smaller model": (
        lambda w: _of_kv_heads(w, lambda h, n: min(h, max(0, n // 2 - 1))),
        "of another head|KV heads",
    ),
    "KV heads in pairs swapped": (
        lambda w: _of_kv_heads(w, lambda h, n: min(h ^ 1, n - 1)),
        "of another head|KV heads",
    ),
    "scale of 0.5": (scored(lambda w: w.s * (0.5 / w.call.scale)), "scale"),
    "scale by length": (
        scored(lambda w: w.s * math.log(w.k.shape[2]) / math.log(512)),
        "scale",
    ),
    "K scale of each head forgotten": (
        scored(
            lambda w: (
                w.s * (0.7 + 0.2 * (torch.arange(w.s.shape[1]) // w.call.group))[:, None, None]
            )
        ),
        "scale",
    ),
    "window of 40 in pages": (scored(lambda w: _window(w, 40, page=16)), _LOST),
    "window of 24 with 4 sinks": (scored(lambda w: _window(w, 24, kept=4)), _LOST),
    "late keys of the next request": (
        lambda w: _other_request_from(w, 48),
        "request|page|keys read",
    ),
    "tile over two pages": (keys_read(_second_halves), "key|page"),
    "V index of 6 bits": (
        valued(lambda w: read(w.v, keys_of(w) % 64)),
        "V .*(again|ring|order|offset|key)",
    ),
    "V rows swizzled": (
        valued(lambda w: read(w.v, (keys_of(w) ^ 4).clamp(max=w.v.shape[2] - 1))),
        "V .*(order|offset|key)",
    ),
    "K tiles of 16 transposed": (
        scored(lambda w: w.scores(k=_tile_of_k_transposed(w))),
        "K .*(layout|transposed|order)",
    ),
    "V zero in the last tile of 64": (
        valued(lambda w: w.v * (keys_of(w) < (w.v.shape[2] - 1) // 64 * 64)[:, None]),
        "read as 0",
    ),
    "keys 8 to 11 of every 32 left out": (
        scored(lambda w: masked(w.s, (keys_of(w) % 32 // 4 == 2))),
        "keys.*left out",
    ),
    "prefix counted twice": (_shared_prefix_once_more, "twice"),
    "linear exp2": (_linear_exp2, "exp2"),
    "exponents cut at -4": (
        scored(lambda w: torch.maximum(w.s, w.s.amax(-1, keepdim=True) - 4)),
        "exponent|clamp|cap|floor",
    ),
    "scores cut at 1": (scored(lambda w: w.s.clamp(max=1.0)), "clamp|cap"),
    "mask of -3": (
        lambda w: attend(w.q @ w.k.mT * w.call.scale - 3.0 * w.hidden, w.v, w.call.q.dtype),
        "hidden|mask",
    ),
    "causal by tiles of 16": (scored(lambda w: _seen_by_tile(w, 16, whole=True)), "mask|causal"),
    "diagonal tiles left out": (
        scored(lambda w: _seen_by_tile(w, 16, whole=False)),
        "mask|causal|left out",
    ),
    "base 10000 for 40000": (scored(lambda w: _retuned(w, 1e4, 4e4)), "RoPE|rotation"),
    "places divided by 4": (
        scored(lambda w: _retuned_places(w, 4.0)),
        "RoPE|rotation",
    ),
    "K rotated twice": (
        scored(lambda w: w.scores(k=rope(w.k, interleaved=False, base=1e4))),
        "RoPE|rotation",
    ),
    "Q rotated twice, pairs": (
        scored(
            lambda w: w.scores(
                q=rope(w.q, interleaved=True, base=5e5, first=w.k.shape[2] - w.q.shape[2])
            )
        ),
        "RoPE|rotation",
    ),
    "ALiBi with slopes of 16 heads": (
        scored(lambda w: _sloped(w, lambda h: 2.0 ** (-0.5 * (h.double() + 1)))),
        "ALiBi",
    ),
    "ALiBi away from the query": (
        scored(lambda w: _sloped(w, lambda h: -0.05 * 2.0 ** (-h.double()))),
        "ALiBi",
    ),
    "bias by log distance": (
        scored(lambda w: w.s - 0.4 * torch.log1p((places(w)[0] - places(w)[1]).abs().double())),
        "bias|ALiBi|position",
    ),
    "K in e4m3, scale by head": (
        scored(lambda w: w.scores(k=_scaled_to(w.k, torch.float8_e4m3fn, 448.0, (2, 3)))),
        "K .*e4m3|K in",
    ),
    "V in int4, scale by token": (valued(lambda w: _whole_steps(w.v, 7, (3,))), "V in"),
    "K and V in int8, scale by channel": (
        lambda w: attend(
            w.scores(k=_whole_steps(w.k, 127, (2,))),
            _whole_steps(w.v, 127, (2,)),
            w.call.q.dtype,
        ),
        "K and V in|K and V .*int8",
    ),
    "q in e4m3": (
        scored(lambda w: w.scores(q=_scaled_to(w.q, torch.float8_e4m3fn, 448.0, (2, 3)))),
        "[qQ] .*e4m3|[qQ] in|[qQ] rounded",
    ),
    "P in steps of 1 / 127": (lambda w: _rounded_p(w, lambda p: torch.round(p * 127) / 127), "P "),
    "o accumulated in fp16 by 16": (running(16, "float16"), "accumulated"),
    "o and l not rescaled": (running(32, "both kept"), "rescaled"),
    "lse in bf16 at the merge": (merged(32, _rounded_lse), "merge|weighted|lse|split"),
    "one split twice": (
        merged(
            40,
            lambda m, l: (
                torch.exp(m - m.amax(0))
                * l
                * torch.where(torch.arange(len(m)) == 1, 2.0, 1.0)[:, None, None, None, None]
            ),
        ),
        "twice|split",
    ),
    "unweighted mean of 5 splits": (
        lambda w: merged(-(-w.k.shape[2] // 5), lambda m, l: torch.ones_like(m))(w),
        "unweighted|weighted",
    ),
    "split of the first keys alone": (
        lambda w: attend(masked(w.s, (keys_of(w) >= 80) & (keys_of(w) > 0)), w.v, w.call.q.dtype),
        "left out|window|split|mask|causal",
    ),
    "mean of V not added back": (
        stored(lambda w, out: (out.double() - w.v.mean(2, keepdim=True)).to(out.dtype)),
        "mean|V .*(offset|bias)",
    ),
}
"""Name: the bug, and a pattern that a right name for it matches."""
