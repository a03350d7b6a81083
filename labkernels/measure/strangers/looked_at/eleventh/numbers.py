"""Bugs in formats and scales: quantised K, V, Q and P, their scales, exp2, sums of few bits."""

import math

import torch

from labkernels.measure.strangers.bugs import Bug
from labkernels.measure.strangers.looked_at.eleventh.parts import (
    DENOMINATOR,
    Tile,
    from_cache,
    looped,
    rounded,
    share,
    split,
    stored,
    weighed,
    where_it_matters,
)
from labkernels.measure.strangers.wrong import Work, keys_of, masked, scored
from labkernels.measure.strangers.wrong import stored as epilogue

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
V_FACTOR = "(?<!and )V (or the output )?by a factor"


def _in(x, dtype):
    return x.float().to(dtype).double()


def _steps(x, levels: int, dims, up=torch.round):
    """Return x on a symmetric grid with a step for each slice along dims."""
    step = x.abs().amax(dims, keepdim=True).clamp(min=1e-12) / levels
    return up(x / step) * step


def _e2m1(x, block: int = 8):
    """Return x in e2m1, blocks of 8 channels with a scale each."""
    groups = x.unflatten(-1, (-1, block))
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 6
    y = groups / scale
    step = torch.where(y.abs() < 2, 0.5, torch.where(y.abs() < 4, 1.0, 2.0))
    return (torch.round(y / step) * step * scale).flatten(-2)


def _page_scales(w: Work, size: int = 16):
    """Return the scales of V's pages, four in turn, for each key [L, 1]."""
    every = torch.tensor([0.75, 1.0, 1.5, 0.5], dtype=torch.float64)
    return every[keys_of(w) // size % 4][:, None]


def _last_quarter(w: Work):
    n = w.k.shape[2]
    return (keys_of(w) >= n - max(1, n // 4))[:, None]


def _channel_scales(d: int):
    return torch.exp2(0.5 * torch.sin(torch.arange(d, dtype=torch.float64)))


def _cut(x, bits: int):
    """Return x with its mantissa cut to so many bits."""
    fraction, power = torch.frexp(x)
    return torch.ldexp(torch.trunc(fraction * 2.0**bits) / 2.0**bits, power)


def _exponents(change) -> Bug:
    """Return a bug in exp2: change(x) returns 2^x for exponents x <= 0, for both sums."""

    def once(w: Work, change):
        m = w.s.amax(-1, keepdim=True)
        x = (w.s - m.masked_fill(m == -math.inf, 0.0)) * math.log2(math.e)
        p = change(x.clamp(min=-200.0)).masked_fill(x == -math.inf, 0.0)
        return stored(w, rounded(p, w) @ w.v, p.sum(-1, keepdim=True))

    return lambda w: where_it_matters(w, once(w, change), once(w, torch.exp2))


def _line(x):
    whole = torch.floor(x)
    return torch.exp2(whole) * (1 + x - whole)


def _sum_in_bf16(tile: Tile, o, l):
    return o, _in(l, torch.bfloat16)


def _partials_in_e4m3(w: Work):
    """Splits of 64 keys store their outputs in e4m3 without a scale."""

    def once(w: Work, keep):
        lse, part = split(w, 64)
        return stored(w, (share(lse) * keep(part)).sum(0), share(lse).sum(0))

    return where_it_matters(w, once(w, lambda x: _in(x, E4M3)), once(w, lambda x: x))


def _less_mean(x, size: int):
    """Return x less the mean of its own tile of `size` rows, if that has more than one row."""
    tiles = [t - t.mean(2, keepdim=True) if t.shape[2] > 1 else t for t in x.split(size, 2)]
    return torch.cat(tiles, 2)


def _zero_points(w: Work, x):
    """Every second page of 16 keys misses its zero point."""
    return x + 0.3 * (keys_of(w) // 16 % 2 == 1)[:, None] * torch.sin(torch.arange(x.shape[3]))


def _sum_of_rounded(w: Work, p, l):
    return _in(p, E4M3), l


WRONG: dict[str, tuple[Bug, str]] = {
    "K's scale forgotten in the last quarter of the keys": (
        from_cache(k=lambda w, x: torch.where(_last_quarter(w), 0.6 * x, x)),
        r"wrong scale|(?<!and )K .*factor|keys by a factor",
    ),
    "V's scale on new keys, which are not quantised": (
        from_cache(v=lambda w, x: torch.where(_last_quarter(w), 0.5 * x, x)),
        V_FACTOR,
    ),
    "V's pages with the scale of the page before": (
        from_cache(
            v=lambda w, x: (
                x * _page_scales(w).roll(min(16, len(keys_of(w)) - 1), 0) / _page_scales(w)
            )
        ),
        V_FACTOR,
    ),
    "K's channels with the scale of the next": (
        from_cache(
            k=lambda w, x: x * _channel_scales(x.shape[3]).roll(-1) / _channel_scales(x.shape[3])
        ),
        "channels of Q or K|(Q|K) divided|K .*factor",
    ),
    "Q in e4m3 after the scale": (
        scored(lambda w: w.scores(q=_in(w.q * w.call.scale, E4M3) / w.call.scale)),
        r"\bQ in|^Q rounded|q rounded",
    ),
    "K in four bits with a step for each token": (
        from_cache(k=lambda w, x: _steps(x, 7, -1)),
        "(?<!and )K in (?!another)",
    ),
    "V in e2m1 with a scale for 8 channels": (
        from_cache(v=lambda w, x: _e2m1(x)),
        "(?<!and )V in (?!another)",
    ),
    "V of eight bits, toward zero": (
        from_cache(v=lambda w, x: _steps(x, 127, (-1, -2), torch.trunc)),
        "(?<!and )V (in (?!another)|truncated|cut)",
    ),
    "V saturated at 1.25": (from_cache(v=lambda w, x: x.clamp(-1.25, 1.25)), "(?<!and )V clipped"),
    "P in e4m3 for the product alone": (weighed(_sum_of_rounded), "^P in"),
    "P times 512 saturates at 448": (
        weighed(lambda w, p, l: (p.clamp(max=448 / 512), l)),
        "clamped|clipped|weights are",
    ),
    "P cut to five bits": (weighed(lambda w, p, l: (_cut(p, 5), l)), "^P (truncated|in|cut)"),
    "exp2 by lines between powers": (_exponents(_line), "exp2|weights are"),
    "exp2 that ends at 2^-4": (
        _exponents(lambda x: torch.exp2(x.clamp(min=-4.0))),
        "exponents clamped|scores clamped",
    ),
    "l in bf16, four keys at a time": (
        looped(4, after=_sum_in_bf16),
        f"l accumulated|{DENOMINATOR}",
    ),
    "partial outputs in e4m3": (_partials_in_e4m3, "partial outputs|o accumulated"),
    "zero points of V's odd pages forgotten": (
        from_cache(v=_zero_points),
        "(?<!and )V with(?! the wrong sign)|offset of V",
    ),
    "queries less the mean of their tile": (
        scored(lambda w: w.scores(q=_less_mean(w.q, 16))),
        "Q less its mean|offset of Q",
    ),
    "K less the mean of its tile of 64": (
        scored(lambda w: w.scores(k=_less_mean(w.k, 64))),
        "K less its mean|(?<!and )K with(?! the wrong sign)",
    ),
    "the output in e5m2 on its way": (
        epilogue(lambda w, out: _in(out, E5M2).to(out.dtype)),
        "^out (was rounded|in(?! another))",
    ),
    "the output cut to six bits": (
        epilogue(lambda w, out: _cut(out.double(), 6).to(out.dtype)),
        "^out was cut|^out was rounded",
    ),
    "scores in e5m2 before the softmax": (
        scored(lambda w: masked(_in(w.s.masked_fill(w.hidden, 0.0), E5M2), w.hidden)),
        "^scores (?!have|clamped|capped)",
    ),
    "weights of a softplus": (
        scored(lambda w: torch.log(torch.log1p(torch.exp(w.s)))),
        "weights are",
    ),
}
"""Name: the bug, and a pattern that a right name for it matches."""
