"""Bugs that were held out until they were looked at, with a pattern of right names for each.

A pattern takes any name that would send a reader to the right line: for a ring buffer that wraps,
"keys read" and "wrong page" as well as "offset".
"""

import math

import torch

from labkernels.measure.strangers.bugs import Bug, rope
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

_SEED = 5


def _noise(x, seed: int = _SEED):
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)).to(x.dtype)


def _turned(w: Work, by: int):
    """Queries one rotation further than their place."""
    half = w.q.shape[-1] // 2
    angle = by * 1e4 ** (-torch.arange(half, dtype=torch.float64) / half)
    a, b = w.q[..., :half], w.q[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


def _without_channels(w: Work, n: int):
    q = w.q.clone()
    q[..., -n:] = 0
    return w.scores(q=q)


def _dropout(w: Work):
    keep = torch.rand(w.s.shape, generator=torch.Generator().manual_seed(_SEED)) >= 0.1
    m = w.s.amax(-1, keepdim=True)
    p = torch.exp(w.s - m)
    return (((p * keep / 0.9) @ w.v) / p.sum(-1, keepdim=True)).to(w.call.q.dtype)


def _quadratic_exp2(w: Work):
    m = w.s.amax(-1, keepdim=True)
    x = (w.s - m) * math.log2(math.e)
    whole = x.masked_fill(x == -math.inf, -1e4).floor()
    part = torch.where(x == -math.inf, torch.zeros_like(x), x - whole)
    p = torch.exp2(whole) * (1 + part * (0.6565 + 0.3435 * part))
    p = p.masked_fill(x == -math.inf, 0.0)
    return (p @ w.v / p.sum(-1, keepdim=True)).to(w.call.q.dtype)


def _sinks(w: Work):
    logits = torch.linspace(-1, 2, w.s.shape[1], dtype=torch.float64)[:, None, None]
    m = w.s.amax(-1, keepdim=True)
    p = torch.exp(w.s - m)
    return (p @ w.v / (p.sum(-1, keepdim=True) + torch.exp(logits - m))).to(w.call.q.dtype)


def _int8(x):
    step = x.abs().amax() / 127
    return torch.round(x / step) * step


def _same_chunk(w: Work, size: int):
    query, key = places(w)
    return masked(w.s, query // size != key // size)


def _tail_of_the_tile_before(w: Work, tile: int = 32):
    n = w.k.shape[2]
    index = keys_of(w)
    rest = n % tile
    if rest:
        index[n - rest :] -= min(tile, n - rest)
    return index


def _flipped_groups(w: Work, x):
    """The query heads of each KV head in reverse."""
    b, h = x.shape[:2]
    return x.reshape(b, h // w.call.group, w.call.group, *x.shape[2:]).flip(2).reshape(x.shape)


def _last_rows_random(out):
    out = out.clone()
    n = max(1, out.shape[2] // 8)
    out[:, :, -n:] = _noise(out[:, :, -n:])
    return out


HEADS = "another row|heads|of another head"
FACTOR = "factor|common mode|times|denominator"
LOST = "left out|read as 0|window"
WRONG: dict[str, tuple[Bug, str]] = {
    "K and V of one head for all": (
        lambda w: attend(
            w.scores(k=w.k[:, :1].expand_as(w.k)), w.v[:, :1].expand_as(w.v), w.call.q.dtype
        ),
        "of another head|KV heads",
    ),
    "query heads of a group in reverse": (
        stored(lambda w, out: _flipped_groups(w, out)),
        HEADS,
    ),
    "even keys alone": (scored(lambda w: masked(w.s, keys_of(w) % 2 == 1)), f"keys|{LOST}"),
    "ring buffer of 48 keys": (keys_read(lambda w: keys_of(w) % 48), "keys read|page|offset|key"),
    "last tile clamped": (keys_read(_tail_of_the_tile_before), "key|page"),
    "V of the page before": (
        valued(lambda w: w.v[:, :, (keys_of(w) - 16).clamp(min=0)]),
        "V of the key|offset|V read|wrong page",
    ),
    "K in reverse order": (
        scored(lambda w: w.scores(k=w.k.flip(2))),
        "K of the key|offset|K read|keys read|page",
    ),
    "first 16 keys twice": (
        keys_read(lambda w: torch.where(keys_of(w) < 32, keys_of(w) % 16, keys_of(w))),
        "key|page|twice",
    ),
    "attention within chunks of 64": (scored(lambda w: _same_chunk(w, 64)), f"{LOST}|chunk|mask"),
    "window of 65 keys": (
        scored(lambda w: masked(w.s, places(w)[1] <= places(w)[0] - 65)),
        LOST,
    ),
    "one key in seven left out": (
        scored(lambda w: masked(w.s, (keys_of(w) % 7 == 3) & (keys_of(w) > 0))),
        f"keys|{LOST}",
    ),
    "temperature 0.95": (scored(lambda w: w.s / 0.95), "scale"),
    "scale of D + 64": (
        scored(lambda w: w.s * (w.q.shape[-1] / (w.q.shape[-1] + 64)) ** 0.5),
        "scale",
    ),
    "scale in fp16, twice": (scored(lambda w: w.s * (1 + 2.0**-7)), "scale"),
    "soft cap of 50": (scored(lambda w: 50 * torch.tanh(w.s / 50)), "soft cap"),
    "soft cap of 2": (scored(lambda w: 2 * torch.tanh(w.s / 2)), "soft cap"),
    "sinks by head": (_sinks, "sink|padding in the denominator|denominator"),
    "last 8 channels of q ignored": (scored(lambda w: _without_channels(w, 8)), "channel|q"),
    "channels of K rolled": (scored(lambda w: w.scores(k=w.k.roll(8, -1))), "channels|K"),
    "queries one rotation ahead": (scored(lambda w: w.scores(q=_turned(w, 1))), "RoPE|rotation"),
    "RoPE, half of the channels": (
        scored(
            lambda w: w.scores(
                *(
                    torch.cat(
                        [
                            rope(x[..., : x.shape[-1] // 2], interleaved=False, base=1e4, first=at),
                            x[..., x.shape[-1] // 2 :],
                        ],
                        -1,
                    )
                    for x, at in ((w.q, w.k.shape[2] - w.q.shape[2]), (w.k, 0))
                )
            )
        ),
        "RoPE|rotation",
    ),
    "ALiBi of half slope": (
        scored(
            lambda w: (
                w.s
                + 0.5
                * 2.0
                ** (-8 * torch.arange(1, w.s.shape[1] + 1, dtype=torch.float64) / w.s.shape[1])[
                    :, None, None
                ]
                * (places(w)[1] - places(w)[0])
            )
        ),
        "ALiBi",
    ),
    "output over the number of splits": (stored(lambda w, out: out / 4), FACTOR),
    "V scale applied twice": (stored(lambda w, out: out * 0.25), FACTOR),
    "half a percent too small": (stored(lambda w, out: out * 0.995), FACTOR),
    "dropout left on": (_dropout, "dropout|left out"),
    "quadratic exp2": (_quadratic_exp2, "exp2"),
    "K in int8": (scored(lambda w: w.scores(k=_int8(w.k))), "K in|K .*int8"),
    "V in int8": (valued(lambda w: _int8(w.v)), "V in|V .*int8"),
    "V in e5m2": (valued(lambda w: w.v.float().to(torch.float8_e5m2).double()), "V in"),
    "o accumulated in bf16 by 64": (running(64, "bfloat16"), "accumulated"),
    "weights of splits in another order": (
        merged(
            48,
            lambda m, l: (torch.exp(m - m.amax(0)) * l).roll(1, 0),
        ),
        "merge|weighted|splits",
    ),
    "merge without maxima": (merged(48, lambda m, l: l * torch.ones_like(m)), "merge|weighted"),
    "channels of V reversed": (stored(lambda w, out: out.flip(-1)), "channels"),
    "one channel in eight zero": (
        stored(lambda w, out: changed(out, (..., slice(3, None, 8)), 0.0)),
        "channels",
    ),
    "last rows random": (
        stored(lambda w, out: _last_rows_random(out)),
        "never written|uninitialised|another row",
    ),
    "noise of one percent": (
        stored(lambda w, out: (out.double() * (1 + 0.01 * _noise(out.double()))).to(out.dtype)),
        "no name fits",
    ),
    "infinity in one element": (
        stored(lambda w, out: changed(out, (0, 0, -1, 5), math.inf)),
        "NaN or inf",
    ),
}
"""Name: the bug, and a pattern that a right name for it matches."""
